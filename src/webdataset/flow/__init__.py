"""Floor 6: the pipeline as a value, and its interpreters: run, snapshot, restore."""
