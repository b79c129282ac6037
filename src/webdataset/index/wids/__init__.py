"""The published ``wids``: a list of shards as one sequence of samples, and the orders to read it in."""
