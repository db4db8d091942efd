"""Panels of figures as inline SVG that takes its colours and its font from the page around it.

matplotlib draws with stand-in colours, which become CSS variables afterwards; so one drawing serves light
and dark pages and print. Identifiers get a prefix, since all panels share one document.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

INK, MUTED, GRID, FAILED = "#010101", "#020202", "#030303", "#040404"
_ARMS = (
    ("#050001", "o", "●"),
    ("#050002", "s", "■"),
    ("#050003", "^", "▲"),
    ("#050004", "D", "◆"),
    ("#050005", "v", "▼"),
    ("#050006", "P", "✚"),
)
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", FAILED: "--failed"}
_VARIABLES |= {colour: f"--arm-{index}" for index, (colour, _, _) in enumerate(_ARMS)}
_MOST_TITLE = 44
_WIDTH_IN = 3.5
_RIGHT_IN, _BELOW_IN, _ABOVE_IN = 0.08, 0.38, 0.24
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 7.5,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "lines.linewidth": 1.3,
}


@dataclass(frozen=True)
class Look:
    """How an arm is drawn: by shape as well as by colour."""

    arm: str
    colour: str
    """A stand-in for the page's variable."""
    marker: str
    symbol: str
    """The marker as a character, for legends."""

    @property
    def variable(self) -> str:
        return _VARIABLES[self.colour]


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
    arms: tuple[Look, ...]
    """In the legend."""


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """A look for each arm, the baseline first."""
    return {arm: Look(arm, *look) for arm, look in zip(arms, cycle(_ARMS), strict=False)}


def figure(id_: str, title: str, caption: str, panels: Iterable[Panel], arms: Iterable[Look]) -> list[Figure]:
    """One figure; none where there is no panel."""
    drawn = tuple(panels)
    found = Figure(id=id_, title=title, caption=caption, panels=drawn, arms=tuple(arms))
    return [found] if drawn else []


def panel(
    id_: str,
    title: str,
    alt: str,
    draw: Callable[[Axes], object],
    *,
    height_in: float = 2.1,
    left_in: float = 0.5,
) -> Panel:
    """Let `draw` fill one pair of axes. `id_` must be unique on the page."""
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": id_}):
        drawing = Drawing(figsize=(_WIDTH_IN, height_in))
        FigureCanvasSVG(drawing)
        # Fixed margins keep the axes of several panels in line.
        width, height = _WIDTH_IN - left_in - _RIGHT_IN, height_in - _BELOW_IN - _ABOVE_IN
        axes = drawing.add_axes(
            (left_in / _WIDTH_IN, _BELOW_IN / height_in, width / _WIDTH_IN, height / height_in)
        )
        axes.set_title(title if len(title) <= _MOST_TITLE else f"{title[: _MOST_TITLE - 1]}…")
        draw(axes)
        out = io.StringIO()
        drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return Panel(title=title, alt=alt, svg=_inline(out.getvalue(), id_, title, alt))


def _inline(svg: str, id_: str, title: str, alt: str) -> str:
    """The `svg` element alone, with a name for who cannot see it, and without what a page must not repeat."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', body)
    head = f'<svg {box[0] if box else ""} role="img" aria-labelledby="{id_}-title {id_}-desc">'
    name = f'<title id="{id_}-title">{escape(title)}</title><desc id="{id_}-desc">{escape(alt)}</desc>'
    body = re.sub(r"^<svg[^>]*>", lambda _: "", body)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{id_}-\1"', body)
    body = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{id_}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{id_}-\1)", body)
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    return head + name + re.sub(r"\n\s*", "\n", body).strip()
