"""What the ranks of a group agree on over the CPU: graphs, calls, steps; and how they are heard."""
