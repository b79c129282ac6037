"""Floor 9: programs. They may see everything, and alone may print."""
