"""Interleaved documents: recognises texts and images in one order in samples, and assembles them."""
