"""Speed-up against the number of speculative tokens, as one run at the largest k predicts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmark.metrics import TPOT
from benchmark.show.figures.canvas import MUTED, Figure, Look, looks, panel
from benchmark.show.prediction import Curve
from benchmark.show.wording import load_of, load_text

Measured = Mapping[str, tuple[int, Mapping[str, Any]]]
"""By treatment: its k and its comparison by the headline metric."""
CAPTION = (
    "Dashed, predicted: speed-up in time per token for each number of speculative tokens k, from this run's "
    "acceptance by position and its step times, with its 95 % interval. Filled mark: what the run found at its "
    "own k. Ring: the k to take, the smallest within 1 % of the best; no ring where plain decoding is as good."
)


def figures(summary: Mapping[str, Any], curves: Sequence[Curve]) -> list[Figure]:
    """A panel for each class and load; none without a prediction."""
    arms = looks([arm["name"] for arm in summary["run"]["arms"]])
    drafted = {arm["name"]: arm["speculative_tokens"] for arm in summary["run"]["arms"]}
    places = dict.fromkeys((curve.class_, curve.load) for curve in curves)
    many = len({load for _, load in places}) > 1
    top = max((point.high or point.speed_up for curve in curves for point in curve.points), default=1.0)
    panels = []
    for index, (class_, load) in enumerate(places):
        here = [curve for curve in curves if (curve.class_, curve.load) == (class_, load)]
        measured = {
            one["treatment"]: (drafted[one["treatment"]], one)
            for one in summary["comparisons"]
            if (one["class"], load_of(one), one["metric"]) == (class_, load, TPOT.name) and one["ratio"]
        }
        where = f"{class_}, {load_text(*load)}" if many else class_
        draw = partial(_draw, curves=here, arms=arms, measured=measured, top=top)
        panels.append(panel(f"a{index}", where, _alt(where, here), draw))
    if not panels:
        return []
    shown = tuple(arms[name] for name in dict.fromkeys(curve.treatment for curve in curves))
    title = "Predicted speed-up against the number of speculative tokens"
    return [Figure(id="trade-off-figure", title=title, caption=CAPTION, panels=tuple(panels), arms=shown)]


def _draw(
    axes: Axes, *, curves: Sequence[Curve], arms: Mapping[str, Look], measured: Measured, top: float
) -> None:
    axes.axhline(1, color=MUTED, linewidth=0.8)
    for curve in curves:
        look = arms[curve.treatment]
        ks = [point.k for point in curve.points]
        known = [point for point in curve.points if point.low is not None and point.high is not None]
        lows, highs = [point.low or 0.0 for point in known], [point.high or 0.0 for point in known]
        axes.fill_between([p.k for p in known], lows, highs, color=look.colour, alpha=0.18, linewidth=0)
        axes.plot(ks, [point.speed_up for point in curve.points], color=look.colour, linestyle=(0, (4, 2)))
        best = [point for point in curve.points if point.k == curve.recommended]
        axes.plot(
            [point.k for point in best],
            [point.speed_up for point in best],
            "o",
            color=look.colour,
            markerfacecolor="none",
            markersize=10,
            markeredgewidth=1.2,
        )
        if curve.treatment in measured:
            k, one = measured[curve.treatment]
            if one["ci_low"] is not None:
                axes.plot([k, k], [one["ci_low"], one["ci_high"]], color=look.colour, linewidth=1.8)
            axes.plot([k], [one["ratio"]], look.marker, color=look.colour, markersize=6)
    most = max(point.k for curve in curves for point in curve.points)
    axes.set_xlim(0, most + 0.5)
    axes.set_ylim(0, max(top, 1.0) * 1.12)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xlabel("speculative tokens, k")


def _alt(where: str, curves: Sequence[Curve]) -> str:
    parts = []
    for curve in curves:
        best = max(curve.points, key=lambda point: point.speed_up)
        advice = f"recommended k {curve.recommended}" if curve.recommended else "do not speculate"
        parts.append(f"{curve.treatment}, best {best.speed_up:.2f} at k {best.k}, {advice}")
    return f"Predicted speed-up against k, {where}: {'; '.join(parts)}."
