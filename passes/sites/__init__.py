"""What to shard: one file a role, and the reasons for what is left alone."""
