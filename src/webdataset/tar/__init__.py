"""Floor 2: bytes to members and back, without any input or output of its own."""
