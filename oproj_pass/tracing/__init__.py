"""Brings a model to graphs without weights or process groups; explaining and loading stand on it."""
