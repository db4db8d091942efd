"""What people and other tools read of a run: page, terminal, files, metrics."""
