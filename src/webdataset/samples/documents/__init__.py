"""Interleaved documents: texts and images in one order, recognised in samples and put together."""
