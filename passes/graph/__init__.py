"""Reads FX graphs: operators, arguments, provenance, effects, stored inputs, collectives."""
