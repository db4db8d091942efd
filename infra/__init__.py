"""Experiment in, AWS stacks out."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository: what images, builds and the delivery's sources are made from."""
