"""Experiment in, AWS stacks out."""
