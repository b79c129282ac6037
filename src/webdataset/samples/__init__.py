"""Groups the members of shards into samples, and writes samples back as members."""
