"""Loads a checkpoint into a model of which each rank only ever holds its own slices."""

from oproj_pass.loading.load import load_sharded

__all__ = ["load_sharded"]
