"""Pure capture planning: no tensors, no torch."""
