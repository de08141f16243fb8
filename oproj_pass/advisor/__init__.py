"""Is it worth it, at which N, by which strategy, and does a step get faster or slower."""
