"""A run in the formats of other tools: one a module, each `export(run) -> bytes`."""
