"""Floor 8: the chainable dataset and loader."""
