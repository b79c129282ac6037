"""Floor 4: url expressions, shard lists, splitting and resampling."""
