"""Drawings as inline SVG that take their colours and their font from the page around them.

One drawing serves light and dark pages and print. Marks stay inside the plot area, and every text is outside it with a
place of its own, so no label lies on a mark or on another label, whatever the values are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from statistics import fmean

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


@dataclass(frozen=True, order=True)
class Look:
    """How a series is drawn: by shape as well as by colour."""

    name: str
    variable: str
    """Name of its colour in the page's style."""
    shape: str
    """A path around the point 0, 0."""


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, the baseline first; 30 treatments differ."""
    others = zip(cycle(range(1, _COLOURS + 1)), cycle((*_SHAPES[1:], _SHAPES[0])), strict=False)
    found: dict[str, Look] = {}
    for name in names:
        colour, shape = next(others) if found else (0, _SHAPES[0])
        found[name] = Look(name, f"--series-{colour}", shape)
    return found


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
        """The same as a page has it."""
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
        found: list[float] = []
        for tick in wanted:
            if all(abs(self.at(tick) - self.at(other)) >= 1 / self.most for other in found):
                found.append(tick)
        return sorted(found)

    def _steps(self) -> list[float]:
        least = (self.high - self.low) / self.most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least * 0.999)
        if self.whole:
            step = float(max(1, math.ceil(step)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 12) for index in range(first, last + 1)]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing. `alt` says in words what it shows."""

    title: str
    alt: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels that belong together, with what a reader must know about them."""

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    looks: tuple[Look, ...]
    """Entries of the legend."""


def figure(
    id_: str, title: str, caption: str, panels: Iterable[Panel], legend: Iterable[Look]
) -> list[Figure]:
    """One figure; none where there is no panel."""
    drawn = tuple(panels)
    found = Figure(id=id_, title=title, caption=caption, panels=drawn, looks=tuple(legend))
    return [found] if drawn else []


class Plot:
    """A plot area between two axes, which marks are added to."""

    def __init__(
        self, x: Axis, y: Axis, *, width: int = NARROW, labels: Sequence[tuple[Look, float]] = ()
    ) -> None:
        """`labels`: names of series to the right of the plot area, each at its value of `y`."""
        self.x, self.y, self._whole = x, y, width
        self._labels = [(shortened(look.name, _LONGEST_LABEL), look, value) for look, value in labels]
        self._left = 9 + _PER_CHAR * max((len(text) for _, text in y.ticks), default=1)
        beside = _PER_CHAR * max((len(name) for name, _, _ in self._labels), default=0)
        self._width = width - self._left - max(_RIGHT, beside + 20)
        self._height = max(_HEIGHT * width, 1.6 * _PER_LINE * len(self._labels))
        self._parts: list[str] = []

    def line(self, points: Points, look: Look, *, dashed: bool = False) -> None:
        """Through `points`, as far as the axis goes."""
        inside = [point for point in points if point[0] <= self.x.high]
        path = "L".join(self._at(*point) for point in inside)
        self._mark("line dashed" if dashed else "line", look, f'<path d="M{path}"/>' if inside else "")

    def span(self, low: float, high: float, y: float, look: Look) -> None:
        """A thick bar from one `x` to another."""
        self._mark("span", look, f'<path d="M{self._at(low, y)}L{self._at(high, y)}"/>')

    def zone(self, low: float, high: float) -> None:
        """Shade what is between two values of `y`."""
        top, foot = self._down(high), self._down(low)
        self._parts.append(
            f'<rect class="zone" x="{self._left:.1f}" y="{top:.1f}" width="{self._width:.1f}" height="{foot - top:.1f}"/>'
        )

    def dots(self, points: Points, look: Look) -> None:
        """A mark of the series' shape at each point."""
        self._mark("dot", look, "".join(self._shape(point, look.shape) for point in points))

    def crosses(self, xs: Iterable[float]) -> None:
        """Failures, at the foot of the plot area."""
        parts = "".join(self._shape((x, self.y.low), _CROSS) for x in xs)
        self._parts += [f'<g class="mark cross">{parts}</g>'] if parts else []

    def panel(self, id_: str, title: str, alt: str) -> Panel:
        """The drawing. `id_` must be unique on the page."""
        head = (
            f'<svg viewBox="0 0 {self._whole} {_TOP + self._height + _BELOW:g}" role="img" aria-labelledby="{id_}-title {id_}-desc">'
            f'<title id="{id_}-title">{escape(title)}</title><desc id="{id_}-desc">{escape(alt)}</desc>'
        )
        body = "\n".join((*self._axes(), *self._parts, *self._named()))
        return Panel(title=title, alt=alt, svg=f"{head}\n{body}\n</svg>")

    def _mark(self, kind: str, look: Look, content: str) -> None:
        if content:
            self._parts.append(f'<g class="mark {kind}" style="--c: var({look.variable})">{content}</g>')

    def _shape(self, point: tuple[float, float], shape: str) -> str:
        return f'<path transform="translate({self._at(*point)})" d="{shape}"/>'

    def _at(self, x: float, y: float) -> str:
        return f"{self._left + self.x.at(x) * self._width:.1f} {self._down(y):.1f}"

    def _down(self, y: float) -> float:
        return _TOP + (1 - self.y.at(y)) * self._height

    def _axes(self) -> Iterable[str]:
        right, foot = self._left + self._width, _TOP + self._height
        yield f'<rect class="plot" x="{self._left:.1f}" y="{_TOP}" width="{self._width:.1f}" height="{self._height:g}"/>'
        for value, text in self.y.ticks:
            y = self._down(value)
            yield f'<path class="grid" d="M{self._left:.1f} {y:.1f}H{right:.1f}"/>'
            yield _text(self._left - 5, y + 3.7, text, "end")
        for value, text in self.x.ticks:
            x = self._left + self.x.at(value) * self._width
            yield f'<path class="tick" d="M{x:.1f} {foot:g}v3"/>'
            yield _text(x, foot + 14, text, "middle")
        yield f'<path class="axis" d="M{self._left:.1f} {foot:g}H{right:.1f}"/>'
        yield _text(right, foot + 29, self.x.title, "end")
        yield _text(2, 9, self.y.title, "start")

    def _named(self) -> Iterable[str]:
        """The labels near their values, moved apart as far as they would meet."""
        wanted = sorted((self._down(value), name, look) for name, look, value in self._labels)
        right, groups = self._left + self._width, list[list[float]]()
        for index, (y, _, _) in enumerate(wanted):
            groups.append([y - index * _PER_LINE])
            while len(groups) > 1 and fmean(groups[-2]) >= fmean(groups[-1]):
                groups[-2:] = [groups[-2] + groups[-1]]
        most = _TOP + self._height - _PER_LINE * (len(wanted) - 1)
        begins = [min(max(fmean(group), float(_TOP)), most) for group in groups for _ in group]
        for index, (begin, (y, name, look)) in enumerate(zip(begins, wanted, strict=True)):
            beside = begin + index * _PER_LINE
            path = f"M{right + 2:.1f} {y:.1f}L{right + 14:.1f} {beside:.1f}"
            yield f'<path class="leader" style="--c: var({look.variable})" d="{path}"/>'
            yield _text(right + 17, beside + 3.7, name, "start", "name")


def shortened(text: str, most: int) -> str:
    """The text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(x: float, y: float, text: str, anchor: str, class_: str = "") -> str:
    if not text:
        return ""
    class_ = f' class="{class_}"' if class_ else ""
    return f'<text{class_} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
