"""Speed-up against the number of speculative tokens, as one run at the largest k predicts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmark.analyse.cells import Place
from benchmark.metrics import TPOT
from benchmark.show.figures.canvas import MUTED, Figure, Look, figure, panel

_TRADE_OFF_CAPTION = (
    "Dashed, predicted: speed-up in time per token for each number of speculative tokens k, from this run's "
    "acceptance by position and its step times, with its 95 % interval. Filled mark: what the run found at its "
    "own k. Ring: the k to take, the smallest within 1 % of the best; no ring where plain decoding is as good."
)
Predicted = Sequence[Mapping[str, Any]]
"""Cells and mixes of `benchmark.analyse.advise`, each with its class."""


def trade_off(summary: Mapping[str, Any], arms: Mapping[str, Look], predicted: Predicted) -> list[Figure]:
    """A panel for each class and load; none without a prediction."""
    drafted = {arm["name"]: arm["speculative_tokens"] for arm in summary["run"]["arms"]}
    places = dict.fromkeys(map(Place.of, predicted))
    top = max((row["ci_high"] or row["speed_up"] for one in predicted for row in one["by_k"]), default=1.0)
    panels = []
    for index, place in enumerate(places):
        curves = [one for one in predicted if Place.of(one) == place]
        measured = {
            one["treatment"]: (drafted[one["treatment"]], one)
            for one in summary["comparisons"]
            if (Place.of(one), one["metric"]) == (place, TPOT.name) and one["ratio"]
        }
        where = str(place) if len({place.load for place in places}) > 1 else place.class_
        draw = partial(_draw_windows, curves=curves, arms=arms, measured=measured, top=top)
        panels.append(panel(f"a{index}", where, _windows_in_words(where, curves), draw))
    shown = [arms[name] for name in dict.fromkeys(one["arm"] for one in predicted)]
    title = "Predicted speed-up against the number of speculative tokens"
    return figure("trade-off-figure", title, _TRADE_OFF_CAPTION, panels, shown)


def _draw_windows(
    axes: Axes,
    *,
    curves: Predicted,
    arms: Mapping[str, Look],
    measured: Mapping[str, tuple[int, Mapping[str, Any]]],
    top: float,
) -> None:
    """`measured`: by treatment its k and its comparison by the headline metric."""
    axes.axhline(1, color=MUTED, linewidth=0.8)
    for curve in curves:
        look, rows = arms[curve["arm"]], curve["by_k"]
        known = [row for row in rows if row["ci_low"] is not None]
        lows, highs = [row["ci_low"] for row in known], [row["ci_high"] for row in known]
        axes.fill_between([r["k"] for r in known], lows, highs, color=look.colour, alpha=0.18, linewidth=0)
        ks, gains = [row["k"] for row in rows], [row["speed_up"] for row in rows]
        axes.plot(ks, gains, color=look.colour, linestyle=(0, (4, 2)))
        best = [row for row in rows if row["k"] == curve["recommended_k"]]
        axes.plot(
            [row["k"] for row in best],
            [row["speed_up"] for row in best],
            "o",
            color=look.colour,
            markerfacecolor="none",
            markersize=10,
            markeredgewidth=1.2,
        )
        if curve["arm"] in measured:
            k, one = measured[curve["arm"]]
            if one["ci_low"] is not None:
                axes.plot([k, k], [one["ci_low"], one["ci_high"]], color=look.colour, linewidth=1.8)
            axes.plot([k], [one["ratio"]], look.marker, color=look.colour, markersize=6)
    axes.set_xlim(0, max(row["k"] for curve in curves for row in curve["by_k"]) + 0.5)
    axes.set_ylim(0, max(top, 1.0) * 1.12)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xlabel("speculative tokens, k")


def _windows_in_words(where: str, curves: Predicted) -> str:
    parts = []
    for curve in curves:
        best = max(curve["by_k"], key=lambda row: float(row["speed_up"]))
        k = curve["recommended_k"]
        advice = f"recommended k {k}" if k else "do not speculate"
        parts.append(f"{curve['arm']}, best {best['speed_up']:.2f} at k {best['k']}, {advice}")
    return f"Predicted speed-up against k, {where}: {'; '.join(parts)}."
