"""Layer 3: groups the members of shards into samples, and writes samples back as members."""
