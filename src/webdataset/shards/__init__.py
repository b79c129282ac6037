"""Shards: which there are, in which order, and which of them this rank and worker reads."""
