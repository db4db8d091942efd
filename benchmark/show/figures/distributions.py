"""How values spread within a cell: requests, gaps between chunks, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.stats import percentile
from benchmark.metrics import INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from benchmark.show.figures.canvas import Figure, Look, figure, panel
from benchmark.show.figures.series import places, shares, values

_SPREAD = (
    (TPOT, "Distribution of the time per output token", "over requests"),
    (
        INTER_CHUNK_LATENCY,
        "Distribution of the inter-chunk latency",
        "over chunks: the stutter that a reader sees",
    ),
    (TTFT, "Distribution of the time to first token", "over requests"),
)
_END = 99
"""Percentile at which the axes of values end."""

_Curves = Sequence[tuple[Look, Sequence[float]]]


def distributions(cells: Cells, arms: Mapping[str, Look], summary: Mapping[str, Any]) -> list[Figure]:
    """Cumulated shares of three metrics, and tokens per step where an arm speculates."""
    found = []
    for metric, title, over in _SPREAD:
        caption = (
            f"Share of values, {over}, that are not above the one on the axis; the further left a curve, the "
            f"better. An axis ends where the {_END}th percentile of the slowest arm does, rarer values lie beyond."
        )
        name = metric.name.removesuffix("_s")
        panels = []
        for id_, _, where, members in places(cells, arms):
            known = [(look, values(cells.plan, metric, records)) for look, records in members]
            if curves := [(look, ordered) for look, ordered in known if ordered]:
                alt = _in_percentiles(metric, where, curves)
                panels.append(panel(f"d{id_}-{name}", where, alt, partial(_draw_curves, curves=curves)))
        found += figure(f"spread-{name}", title, caption, panels, arms.values())
    return found + _tokens(cells, arms, summary)


def _draw_curves(axes: Axes, *, curves: _Curves) -> None:
    for look, ordered in curves:
        xs, ys = shares(ordered)
        axes.step([xs[0], *xs], [0.0, *ys], where="post", color=look.colour)
        shown = slice(None, None, max(1, len(xs) // 8))
        axes.plot(xs[shown], ys[shown], look.marker, color=look.colour, markersize=3.2, markeredgewidth=0)
    axes.set_xlim(0, max(percentile(ordered, _END) for _, ordered in curves) * 1.05 or 1.0)
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 1000:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("ms")


def _in_percentiles(metric: Metric, where: str, curves: _Curves) -> str:
    parts = [
        f"{look.arm} median {percentile(ordered, 50) * 1000:.3g} ms, 95th percentile "
        f"{percentile(ordered, 95) * 1000:.3g} ms, n {len(ordered)}"
        for look, ordered in curves
    ]
    return f"Cumulated distribution of {metric.name}, {where}: {'; '.join(parts)}."


def _tokens(cells: Cells, arms: Mapping[str, Look], summary: Mapping[str, Any]) -> list[Figure]:
    """Bars of how many tokens a step yielded, where a chunk stands for a step."""
    plan = cells.plan
    speculating = {arm.name: arm for arm in plan.arms if arm.speculative_tokens}
    groups: dict[Place, list[tuple[Look, dict[int, float], int]]] = {}
    for cell in summary["cells"]:
        spread = cell["acceptance"]["distribution"]
        if cell["arm"] in speculating and spread and not cell["acceptance"]["caution"]:
            total = sum(spread.values())
            bars = {int(tokens): times / total for tokens, times in spread.items()}
            ceiling = speculating[cell["arm"]].max_tokens_per_step
            groups.setdefault(Place.of(cell), []).append((arms[cell["arm"]], bars, ceiling))
    panels = []
    for index, (place, members) in enumerate(groups.items()):
        where = str(place) if len(plan.loads) > 1 else place.class_
        means = "; ".join(
            f"{look.arm} {sum(t * s for t, s in bars.items()):.2f}" for look, bars, _ in members
        )
        alt = (
            f"Share of decode steps by the tokens that they yielded, {where}. Mean tokens per step: {means}."
        )
        panels.append(panel(f"k{index}", where, alt, partial(_draw_bars, members=members)))
    caption = (
        "Share of decode steps (chunks but the first of each answer) by the tokens that they yielded. Most of it "
        "to the right: the draft is nearly always right; at 1: its work is thrown away."
    )
    return figure("steps", "Tokens per decode step", caption, panels, [arms[name] for name in speculating])


def _draw_bars(axes: Axes, *, members: Sequence[tuple[Look, dict[int, float], int]]) -> None:
    width = 0.8 / len(members)
    for index, (look, bars, _) in enumerate(members):
        shift = (index - (len(members) - 1) / 2) * width
        axes.bar(
            [tokens + shift for tokens in bars], list(bars.values()), width=width * 0.95, color=look.colour
        )
    most = max(max(*bars, ceiling) for _, bars, ceiling in members)
    axes.set_xlim(0.4, most + 0.6)
    axes.set_xlabel("tokens of a step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
