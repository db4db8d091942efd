"""Axes, marks and labels of a drawing; a template makes SVG of them that takes colours and font from the page around it.

One drawing serves light and dark pages and print. Marks stay inside the plot area, and every text is outside it with a
place of its own, so no label lies on a mark or on another label, whatever the values are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Any

_COLOURS = 6
"""Colours for treatments; the page's style has as many `--series-N`, and `--series-0` for the baseline."""
DOT = "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z"
_SHAPES = (
    DOT,
    "M-2.7-2.7h5.4v5.4h-5.4z",
    "M0-3.7L3.5 2.6H-3.5z",
    "M0-3.9L3.9 0L0 3.9L-3.9 0z",
    "M0 3.7L3.5-2.6H-3.5z",
)
_CROSS = "M-3.5-3.5L3.5 3.5M-3.5 3.5L3.5-3.5"
NARROW, WIDE = 340, 460
"""Widths of a drawing: one of several in a row, or alone."""
_TOP, _BELOW, _RIGHT = 20, 36, 16
_HEIGHT = 0.36
"""Height of a plot area as a share of the drawing's width, unless its labels need more."""
_LONGEST_LABEL = 18
_PER_CHAR, _PER_LINE = 6.4, 13.0
"""Room for a character and for a line of text, generous for every font of the page."""
_RATIOS = (1, 0.1, 0.2, 0.5, 2, 5, 10, 20, 50, 100, 3, 1.5, 0.7, 0.3, 0.8, 0.9, 1.1, 1.2, 4, 1.3)
"""Ticks of a logarithmic axis by importance: where there is no room, the later ones are left out."""
_EDGE = 0.04
"""Share of such an axis at each end that has no ticks, because their texts would stick out."""

Points = Sequence[tuple[float, float]]
Ends = Sequence[float | None]


@dataclass(frozen=True)
class Look:
    """How a series is drawn: by shape as well as by colour."""

    name: str
    variable: str
    """Name of its colour in the page's style."""
    shape: str = ""
    """A path around the point 0, 0."""


LEVEL = Look("", "--muted")
"""A line to compare with."""


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, the baseline first; 30 treatments differ."""
    others = zip(cycle(range(1, _COLOURS + 1)), cycle((*_SHAPES[1:], _SHAPES[0])), strict=False)
    made: dict[str, Look] = {}
    for name in names:
        colour, shape = next(others) if made else (0, _SHAPES[0])
        made[name] = Look(name, f"--series-{colour}", shape)
    return made


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, shared by all that is compared."""

    low: float
    high: float
    title: str = ""
    unit: str = ""
    """Text after the number of each tick."""
    log: bool = False
    whole: bool = False
    """Whether ticks are whole numbers only."""
    most: int = 6
    """Ticks."""
    marked: tuple[float, ...] = ()
    """Where given, ticks are at some of these values, the outer ones first."""

    def at(self, value: float) -> float:
        """Where `value` is, from 0 to 1; what is beyond an end is at that end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def percent(self, value: float) -> float:
        """Where `value` is, in percent of the axis."""
        return round(100 * self.at(value), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values within the ends and their texts, not so many that the texts would meet."""
        if self.marked:
            values = self._apart((self.marked[0], *reversed(self.marked)))
        elif self.log:
            values = self._apart(tick for tick in _RATIOS if _EDGE <= self.at(tick) <= 1 - _EDGE)
        else:
            values = self._steps()
        return [(value, f"{value:,.10g}{self.unit}") for value in values]

    def _apart(self, wanted: Iterable[float]) -> list[float]:
        """Those that are far enough from all before them, in order."""
        kept: list[float] = []
        for tick in wanted:
            if all(abs(self.at(tick) - self.at(other)) >= 1 / self.most for other in kept):
                kept.append(tick)
        return sorted(kept)

    def _steps(self) -> list[float]:
        least = (self.high - self.low) / self.most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least * 0.999)
        step = float(max(1, math.ceil(step))) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 12) for index in range(first, last + 1)]


def ratio_axis(ratios: Iterable[tuple[float | None, float | None, float | None]]) -> Axis:
    """An axis for ratios with their intervals: it holds 1, all ratios, and intervals as far as a factor of 20."""
    known = [(ratio, low or ratio, high or ratio) for ratio, low, high in ratios if ratio]
    lows = [max(min(low, ratio), ratio / 20) / 1.1 for ratio, low, _ in known]
    highs = [min(max(high, ratio), ratio * 20) * 1.1 for ratio, _, high in known]
    return Axis(low=min([0.75, *lows]), high=max([1.3, *highs]), unit="×", log=True)


@dataclass(frozen=True)
class Figure:
    """Drawings that belong together, with the entries of their legend, and what their caption is about."""

    id: str
    title: str
    panels: tuple[Plot, ...]
    looks: tuple[Look, ...]
    about: Mapping[str, Any]


def figure(
    id_: str,
    title: str,
    panels: Iterable[Plot],
    legend: Iterable[Look] = (),
    about: Mapping[str, Any] | None = None,
) -> list[Figure]:
    """One figure; none where there is no panel."""
    made = Figure(id_, title, tuple(panels), tuple(legend), about or {})
    return [made] if made.panels else []


class Plot:
    """A plot area between two axes, which marks are added to; `alt` says in words what it shows."""

    def __init__(
        self,
        id_: str,
        title: str,
        x: Axis,
        y: Axis,
        *,
        width: int = NARROW,
        labels: Iterable[tuple[Look, float]] = (),
    ) -> None:
        """`id_` must be unique on the page; `labels`: series whose names are to the right of the plot area, each at its value
        of `y`."""
        self.id, self.title, self.x, self.y, self.whole, self.alt = id_, title, x, y, width, ""
        self._labels = [(_short(look.name), look, value) for look, value in labels]
        self.left = 9 + _PER_CHAR * max((len(text) for _, text in y.ticks), default=1)
        beside = _PER_CHAR * max((len(name) for name, _, _ in self._labels), default=0)
        self.width, self.top = width - self.left - max(_RIGHT, beside + 20), _TOP
        self.height = max(_HEIGHT * width, 1.6 * _PER_LINE * len(self._labels))
        self.right, self.foot = self.left + self.width, self.top + self.height
        self.bottom = self.foot + _BELOW
        self.zones: list[tuple[float, float]] = []
        self.marks: list[tuple[str, str, Sequence[tuple[str, str]]]] = []
        """Kind and colour of shapes, and of each where it is moved to, if it is, and its path."""

    def line(self, points: Points, look: Look, *, dashed: bool = False) -> None:
        """A line through `points`, as far as the axis goes."""
        path = "L".join(self._at(*point) for point in points if point[0] <= self.x.high)
        self._mark("line dashed" if dashed else "line", look, [("", f"M{path}")] if path else [])

    def interval(self, point: tuple[float, float], look: Look, x: Ends = (), y: Ends = ()) -> None:
        """A line through `point` between two values of `x`, or of `y`, where both are known."""
        if x and None not in x:
            self.line([(x[0] or 0.0, point[1]), (x[1] or 0.0, point[1])], look)
        if y and None not in y:
            self.line([(point[0], y[0] or 0.0), (point[0], y[1] or 0.0)], look)

    def span(self, low: float, high: float, y: float, look: Look) -> None:
        """A thick bar from one `x` to another."""
        self._mark("span", look, [("", f"M{self._at(low, y)}L{self._at(high, y)}")])

    def zone(self, low: float, high: float) -> None:
        """Shade what is between two values of `y`."""
        top = self.down(high)
        self.zones.append((top, self.down(low) - top))

    def dots(self, points: Points, look: Look) -> None:
        """A mark of the series' shape at each point."""
        self._mark("dot", look, [(self._at(*point), look.shape) for point in points])

    def crosses(self, xs: Iterable[float]) -> None:
        """Failures, at the foot of the plot area."""
        self._mark("cross", Look("", ""), [(self._at(x, self.y.low), _CROSS) for x in xs])

    def _mark(self, kind: str, look: Look, paths: Sequence[tuple[str, str]]) -> None:
        self.marks += [(kind, look.variable, paths)] if paths else []

    def _at(self, x: float, y: float) -> str:
        return f"{self.left + self.x.at(x) * self.width:.1f} {self.down(y):.1f}"

    def down(self, y: float) -> float:
        """Where a value of `y` is, from the top of the drawing."""
        return self.top + (1 - self.y.at(y)) * self.height

    @property
    def named(self) -> Iterator[tuple[float, float, str, str, str]]:
        """The names of series near their values, moved apart as far as they would meet: place, name, colour, and a line from the
        value to it."""
        wanted = sorted((self.down(value), name, look) for name, look, value in self._labels)
        groups: list[list[float]] = []
        for index, (y, _, _) in enumerate(wanted):
            groups.append([y - index * _PER_LINE])
            while len(groups) > 1 and fmean(groups[-2]) >= fmean(groups[-1]):
                groups[-2:] = [groups[-2] + groups[-1]]
        most = self.foot - _PER_LINE * (len(wanted) - 1)
        begins = [min(max(fmean(group), float(self.top)), most) for group in groups for _ in group]
        for index, (begin, (y, name, look)) in enumerate(zip(begins, wanted, strict=True)):
            beside = begin + index * _PER_LINE
            leader = f"M{self.right + 2:.1f} {y:.1f}L{self.right + 14:.1f} {beside:.1f}"
            yield self.right + 17, beside + 3.7, name, look.variable, leader


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
