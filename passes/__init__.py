"""Everything that reads or rewrites an FX graph."""
