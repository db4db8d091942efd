"""Checks before a deployment or a run; each finding has its remedy."""
