"""Where serving engines meet the pass: one package an engine, imported by nothing else of this project."""
