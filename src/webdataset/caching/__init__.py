"""Floor 3: bytes kept near. A directory of shards, the names in it, and the bound on its size."""
