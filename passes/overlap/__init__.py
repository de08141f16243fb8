"""Runs sharded regions beside work that does not need their result."""
