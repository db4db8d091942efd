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
        layers=16,
        hidden=128,
        heads=4,
        feed_forward=256,
        steps=2900,
        peak_rate=0.02,
        seed=11,
        grown_from=3,
        grown_at=2800,
    ),
    Shape(name="draft", layers=2, hidden=96, heads=4, feed_forward=256, steps=4400, peak_rate=0.02, seed=12),
    Shape(
        name="weak-draft", layers=1, hidden=64, heads=2, feed_forward=128, steps=300, peak_rate=0.02, seed=13
    ),
)
