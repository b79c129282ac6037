"""Floor 1: what every other floor may use, and what uses none of them.

Errors, settings (every environment variable), seeds, failure policies, optional imports, redaction.
"""
