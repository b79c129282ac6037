"""Floor 4: field bytes to values and back."""
