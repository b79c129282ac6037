"""Layer 5: stages: generators with a state that map, select, shuffle, batch, mix and more."""
