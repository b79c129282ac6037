"""Floor 7: sinks: tar files and series of shards."""
