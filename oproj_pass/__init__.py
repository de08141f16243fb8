"""Shards attention output projections across data-parallel decode ranks, as a graph pass."""
