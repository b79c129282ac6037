"""Floor 5: generators with a memory: map, select, shuffle, batch, mix and the others."""
