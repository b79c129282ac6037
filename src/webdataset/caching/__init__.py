"""Floor 3: bytes kept near. So far: names for cached files, and the bound on a cache's size."""
