"""The predicted speed-up against k, for the figure; `benchmark.analyse.advise` predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.show.wording import load_of

ALL_CLASSES = "all classes, equal shares"


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is predicted for one k."""

    k: int
    speed_up: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One class of one treatment under one load."""

    class_: str
    treatment: str
    load: tuple[int | None, float | None]
    points: tuple[Point, ...]
    recommended: int
    """The k to take; 0: do not speculate."""
    text: str


def curves(raw: RawRun) -> list[Curve]:
    """What the run predicts by class and for all classes together; nothing where it cannot tell."""
    from benchmark.analyse.advise import advise

    try:
        advice = advise(raw)
    except ResultsError:
        return []
    return [_curve(found) for found in (*advice["cells"], *advice["mixes"])]


def _curve(found: Mapping[str, Any]) -> Curve:
    return Curve(
        class_=found.get("class", ALL_CLASSES),
        treatment=found["arm"],
        load=load_of(found),
        points=tuple(
            Point(k=row["k"], speed_up=row["speed_up"], low=row["ci_low"], high=row["ci_high"])
            for row in found["by_k"]
        ),
        recommended=found["recommended_k"],
        text=found["text"],
    )
