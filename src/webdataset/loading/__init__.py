"""Floor 7: worker processes and torch."""
