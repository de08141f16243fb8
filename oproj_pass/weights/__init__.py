"""Keeps each rank's part of a weight, and stands in for the full one that was released."""
