"""Axes and marks of a plot. A template renders them as SVG with the colours and the font of the page.

The same drawing is used on light and dark pages and in print. Marks are inside the plot area and all texts outside of it, so labels
never overlap marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

_COLOURS = 6
"""The number of colours for treatments. The style sheet has `--series-N` for each, and `--series-0` for the baseline."""
DOT = "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z"
_SHAPES = (
    DOT,
    "M-2.7-2.7h5.4v5.4h-5.4z",
    "M0-3.7L3.5 2.6H-3.5z",
    "M0-3.9L3.9 0L0 3.9L-3.9 0z",
    "M0 3.7L3.5-2.6H-3.5z",
)
NARROW, WIDE = 340, 460
"""Widths of a drawing: in a row of several, or alone."""
_TOP, _RIGHT, _HEIGHT, _PER_CHAR = 20, 16, 0.36, 6.4
"""The margins above and to the right of the plot area; its height as a share of the width; the width of a character."""
_RATIOS = (1, 0.1, 0.2, 0.5, 2, 5, 10, 20, 50, 100, 3, 1.5, 0.7, 0.3, 0.8, 0.9, 1.1, 1.2, 4, 1.3)
"""Ticks of a logarithmic axis by importance. If there is not enough space, later ones are left out."""
_EDGE = 0.04
"""The share of a logarithmic axis at each end without ticks, because their texts would be outside of the drawing."""
Points = Sequence[tuple[float, float]]


class Look(NamedTuple):
    """The look of a series: a shape and a colour."""

    name: str
    variable: str
    """The variable of its colour in the style sheet."""
    shape: str = ""
    """A path around the point 0, 0."""


LEVEL = Look("", "--muted")
"""The look of a reference line."""
FAILED = Look("", "", "M-3.5-3.5L3.5 3.5M-3.5 3.5L3.5-3.5")


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, the baseline first; 30 treatments differ."""
    others = zip(cycle(range(1, _COLOURS + 1)), cycle((*_SHAPES[1:], _SHAPES[0])), strict=False)
    by_name: dict[str, Look] = {}
    for name in names:
        colour, shape = next(others) if by_name else (0, _SHAPES[0])
        by_name[name] = Look(name, f"--series-{colour}", shape)
    return by_name


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, shared by all plots that are compared. A linear axis begins at 0."""

    low: float = 0.0
    high: float
    title: str = ""
    unit: str = ""
    """Text after the number of each tick."""
    log: bool = False
    whole: bool = False
    """Whether ticks are whole numbers only."""
    max_ticks: int = 6

    def at(self, value: float) -> float:
        """The position of `value`, from 0 to 1. A value beyond an end is at that end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def percent(self, value: float) -> float:
        """The position of `value` in percent of the axis."""
        return round(100 * self.at(value), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values within the ends with their texts, few enough that texts do not overlap."""
        return [(value, f"{value:,.10g}{self.unit}") for value in self._values()]

    def _values(self) -> list[float]:
        if self.log:
            kept: list[float] = []
            for tick in (tick for tick in _RATIOS if _EDGE <= self.at(tick) <= 1 - _EDGE):
                if all(abs(self.at(tick) - self.at(other)) >= 1 / self.max_ticks for other in kept):
                    kept.append(tick)
            return sorted(kept)
        minimum = self.high / self.max_ticks
        power = 10.0 ** math.floor(math.log10(minimum))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= minimum * 0.999)
        step = float(max(1, math.ceil(step))) if self.whole else step
        return [round(index * step, 12) for index in range(math.floor(self.high / step + 1e-9) + 1)]


def ratio_axis(ratios: Iterable[tuple[float | None, float | None, float | None]]) -> Axis:
    """An axis for ratios with their intervals: it holds 1, all ratios, and intervals as far as a factor of 20."""
    known = [(ratio, low or ratio, high or ratio) for ratio, low, high in ratios if ratio]
    lows = [max(min(low, ratio), ratio / 20) / 1.1 for ratio, low, _ in known]
    highs = [min(max(high, ratio), ratio * 20) * 1.1 for ratio, _, high in known]
    return Axis(low=min([0.75, *lows]), high=max([1.3, *highs]), unit="×", log=True)


@dataclass
class Plot:
    """A plot area between two axes, with marks."""

    id: str
    """Unique on the page."""
    title: str
    x: Axis
    y: Axis
    whole: int = NARROW
    """Width of the drawing."""
    about: str = ""
    said: list[str] = field(default_factory=list)
    """Its subject and a description of each series, for people who cannot see it."""
    marks: list[tuple[str, str, list[tuple[str, str]]]] = field(default_factory=list)
    """For each group of shapes: the class in the style sheet, the colour, and for each shape its position (or an empty text) and path."""

    def __post_init__(self) -> None:
        self.left = 9 + _PER_CHAR * max(len(text) for _, text in self.y.ticks)
        self.width, self.height = self.whole - self.left - _RIGHT, _HEIGHT * self.whole
        self.top, self.right, self.foot = _TOP, self.left + self.width, _TOP + self.height

    def line(self, points: Points, look: Look, kind: str = "mark line") -> None:
        """A line through `points`, as far as the axis goes."""
        path = "L".join(self._at(*point) for point in points if point[0] <= self.x.high)
        self.marks += [(kind, look.variable, [("", f"M{path}")])] if path else []

    def interval(self, x: Sequence[float | None], y: Sequence[float | None], look: Look) -> None:
        """A line between two points, by their values on each axis; nothing if one is unknown."""
        ends = [(at, value) for at, value in zip(x, y, strict=True) if at is not None and value is not None]
        self.line(ends if len(ends) == 2 else (), look)

    def dots(self, points: Iterable[tuple[float, float]], look: Look, kind: str = "mark dot") -> None:
        """A mark with the shape of the series at each point."""
        paths = [(self._at(*point), look.shape) for point in points]
        self.marks += [(kind, look.variable, paths)] if paths else []

    def _at(self, x: float, y: float) -> str:
        return f"{self.left + self.x.at(x) * self.width:.1f} {self.down(y):.1f}"

    def down(self, y: float) -> float:
        """The position of a value of `y`, from the top of the drawing."""
        return self.top + (1 - self.y.at(y)) * self.height


class Figure(NamedTuple):
    """Plots of one figure, with the entries of their legend, and data for the caption."""

    id: str
    title: str
    panels: Sequence[Plot]
    looks: Sequence[Look]
    about: Mapping[str, Any]
