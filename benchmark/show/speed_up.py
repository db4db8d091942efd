"""Speed-up with its interval, class by class: a forest plot for each compared metric.

Speed-up against the number of speculative tokens, as one run at the largest k predicts it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import EQUIVALENT
from benchmark.metrics import COMPARED, TPOT
from benchmark.show.canvas import INK, MUTED, Figure, Look, figure, panel
from benchmark.show.wording import ratio_text, verdict_text

TITLES = {
    "tpot_s": "Time per output token",
    "ttft_s": "Time to first token",
    "e2e_s": "End-to-end latency",
    "output_tokens_per_s": "Output tokens per second",
}
_TICKS = (0.1, 0.2, 0.5, 2, 5, 10, 20, 50, 100, 3, 1.5, 0.7, 0.3, 0.8, 0.9, 1.1, 1.2, 4, 1.3)
"""By importance: where there is no room, the later ones are left out."""
_MOST_TICKS = 6


def speed_up(summary: Mapping[str, Any], arms: Mapping[str, Look]) -> list[Figure]:
    """One figure, with a panel for each metric and load; none where nothing could be compared."""
    known = [found for found in summary["comparisons"] if found["ratio"] is not None]
    loads = list(dict.fromkeys(Place.of(found).load for found in known))
    panels = []
    for number, load in enumerate(loads):
        for metric in COMPARED:
            found = [one for one in known if Place.of(one).load == load and one["metric"] == metric.name]
            if found:
                title = TITLES[metric.name]
                rows = [
                    f"{one['class']}, {one['treatment']} {ratio_text(one)} {verdict_text(one)}"
                    for one in found
                ]
                panels.append(
                    panel(
                        f"s{number}-{metric.name.removesuffix('_s')}",
                        f"{title}, {load.in_words}" if len(loads) > 1 else title,
                        f"Speed-up over {found[0]['baseline']}: {'; '.join(rows)}.",
                        partial(_draw_forest, found=found, arms=arms),
                        height_in=0.7 + 0.36 * len(found),
                        left_in=1.05,
                    )
                )
    caption = (
        "Ratio of geometric means over pairs of requests with the same prompt, with its 95 % interval, on a "
        f"logarithmic axis. Right of 1 the treatment is better. Shaded: {EQUIVALENT[0]} to {EQUIVALENT[1]}, no "
        "difference that matters. A hollow mark: too few prompts for a verdict."
    )
    shown = [arms[name] for name in dict.fromkeys(found["treatment"] for found in known)]
    return figure("speed-up-figure", "Speed-up by class", caption, panels, shown)


def _draw_forest(axes: Axes, *, found: Sequence[Mapping[str, Any]], arms: Mapping[str, Look]) -> None:
    """Rows from the top; a class is named at its first treatment."""
    low, high = _range(found)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.axvspan(*EQUIVALENT, color=MUTED, alpha=0.18, linewidth=0)
    axes.axvline(1, color=MUTED, linewidth=0.8)
    heights = range(len(found), 0, -1)
    for y, one in zip(heights, found, strict=True):
        _draw_interval(axes, y, one, arms[one["treatment"]])
    axes.set_ylim(0.5, len(found) + 0.8)
    labels = [
        "" if index and found[index - 1]["class"] == one["class"] else _in_two_lines(one["class"])
        for index, one in enumerate(found)
    ]
    axes.set_yticks(list(heights), labels, color=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")


def _draw_interval(axes: Axes, y: float, one: Mapping[str, Any], look: Look) -> None:
    """With its numbers above it."""
    if one["ci_low"] is not None:
        interval = [one["ci_low"], one["ci_high"]]
        axes.plot(interval, [y, y], color=look.colour, linewidth=1.8, solid_capstyle="butt")
    fill = "none" if one["verdict"] == "too few" else look.colour
    axes.plot([one["ratio"]], [y], look.marker, color=look.colour, markersize=5, markerfacecolor=fill)
    axes.text(
        1.0,
        y + 0.2,
        ratio_text(one),
        transform=axes.get_yaxis_transform(),
        va="bottom",
        ha="right",
        color=MUTED,
        fontsize=7,
    )


def _in_two_lines(class_: str) -> str:
    return "\n".join(textwrap.wrap(class_, 17, max_lines=2, placeholder="…"))


def _ticks(low: float, high: float) -> list[float]:
    """Round ratios within the limits, not so many that their labels would meet."""
    room = math.log(high / low) / _MOST_TICKS
    found: list[float] = []
    for tick in (1, *_TICKS):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= room for other in found):
            found.append(tick)
    return sorted(found)


def _range(found: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Limits that hold 1, all ratios, and intervals as far as a factor of 20."""
    lows = [max(one["ci_low"] or one["ratio"], one["ratio"] / 20) for one in found]
    highs = [min(one["ci_high"] or one["ratio"], one["ratio"] * 20) for one in found]
    return min(0.8, min(lows) / 1.1), max(1.25, max(highs) * 1.1)


_TRADE_OFF_CAPTION = (
    "Dashed, predicted: speed-up in time per token for each number of speculative tokens k, from this run's "
    "acceptance by position and its step times, with its 95 % interval. Filled mark: what the run found at its "
    "own k. Ring: the k to take, the smallest within 1 % of the best; no ring where plain decoding is as good."
)
Predicted = Sequence[Mapping[str, Any]]
"""Cells and mixes of `benchmark.analyse.acceptance.advice`, each with its class."""


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
        best = [row for row in rows if row["k"] in (curve["not_told_apart"] or [curve["recommended_k"]])]
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
        alike = curve["not_told_apart"]
        advice = f"recommended k {k}" if k else "do not speculate"
        if alike:
            advice = f"k {alike[0]} to {alike[-1]} not told apart"
        parts.append(f"{curve['arm']}, best {best['speed_up']:.2f} at k {best['k']}, {advice}")
    return f"Predicted speed-up against k, {where}: {'; '.join(parts)}."
