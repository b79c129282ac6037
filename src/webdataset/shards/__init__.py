"""Layer 4: the shards of a dataset: which there are, in which order, and which of them this rank and worker reads."""
