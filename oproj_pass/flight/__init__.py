"""What this rank did last, in memory, and where the records of several ranks first differ."""
