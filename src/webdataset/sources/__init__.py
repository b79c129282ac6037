"""Floor 2: url in, stream of bytes out (and the reverse for writers). Knows nothing of tar or samples."""
