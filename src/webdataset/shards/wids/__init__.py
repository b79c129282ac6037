"""wids JSON: indexes that say how many samples each shard of a dataset has."""
