"""The sizes of the three models, and how long each is trained."""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY = 2048
CONTEXT = 1024
"""Positions that a model accepts."""
HEAD_DIM = 32
"""The smallest that vLLM's attention on CPU takes."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One model of the Qwen3 architecture and its training."""

    name: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    steps: int
    peak_rate: float
    seed: int
    grown_from: int = 0
    """Layers of the first stage; the others are put in between as identities for the second. 0: no growing."""
    grown_at: int = 0
    """Step at which that happens."""


SHAPES = (
    Shape(
        name="target",
        layers=14,
        hidden=160,
        heads=4,
        feed_forward=384,
        steps=1300,
        peak_rate=3e-3,
        seed=11,
        grown_from=4,
        grown_at=1200,
    ),
    Shape(
        name="draft", layers=2, hidden=96, heads=3, feed_forward=256, steps=4000, peak_rate=5e-3, seed=12
    ),
    Shape(
        name="weak-draft", layers=1, hidden=64, heads=2, feed_forward=128, steps=600, peak_rate=5e-3, seed=13
    ),
)
