"""What a size of "auto" chooses from. Loads no torch, as the deployment check does not."""

AUTO = "auto"
AUTO_SIZES = (8, 4, 2)
"""The largest first."""
