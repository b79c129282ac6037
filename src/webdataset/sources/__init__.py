"""Floor 2: urls to streams of bytes."""
