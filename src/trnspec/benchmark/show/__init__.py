"""The output of a run for people and other tools: page, terminal, files, metrics."""
