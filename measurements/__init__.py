"""What is measured about the tools themselves; `scripts/measure SUBJECT` runs one. Figures, never tests."""
