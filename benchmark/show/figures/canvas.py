"""Panels of figures as inline SVG that takes its colours and its font from the page around it.

matplotlib draws with stand-in colours, which become CSS variables afterwards; so one drawing serves light
and dark pages and print. Identifiers get a prefix, since all panels share one document.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

INK, MUTED, GRID, FAILED = "#010101", "#020202", "#030303", "#040404"
_ARMS = ("#050001", "#050002", "#050003", "#050004", "#050005", "#050006")
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", FAILED: "--failed"}
_VARIABLES |= {colour: f"--arm-{index}" for index, colour in enumerate(_ARMS)}
_MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))
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


@dataclass(frozen=True, kw_only=True)
class Look:
    """How an arm is drawn: by shape as well as by colour."""

    arm: str
    colour: str
    """A stand-in; the page's variable has the same number."""
    marker: str
    symbol: str
    """The marker as a character, for legends."""
    variable: str


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


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """A look for each arm, the baseline first."""
    found = {}
    for index, arm in enumerate(arms):
        turn = index % len(_ARMS)
        marker, symbol = _MARKERS[turn]
        found[arm] = Look(
            arm=arm, colour=_ARMS[turn], marker=marker, symbol=symbol, variable=_VARIABLES[_ARMS[turn]]
        )
    return found


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
        axes = drawing.add_axes(_inner(left_in, height_in))
        axes.set_title(shortened(title, 44))
        draw(axes)
        out = io.StringIO()
        drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return Panel(title=title, alt=alt, svg=_inline(out.getvalue(), id_, title, alt))


def _inner(left_in: float, height_in: float) -> tuple[float, float, float, float]:
    """Where the axes lie in a drawing, as shares of it. Fixed margins keep axes of several panels in line."""
    width = _WIDTH_IN - left_in - _RIGHT_IN
    return (
        left_in / _WIDTH_IN,
        _BELOW_IN / height_in,
        width / _WIDTH_IN,
        (height_in - _BELOW_IN - _ABOVE_IN) / height_in,
    )


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


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
