"""How values spread within a cell: requests, gaps between chunks, tokens of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmark.analyse.stats import percentile
from benchmark.measure.journal import RawRun
from benchmark.metrics import INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from benchmark.plan import Plan
from benchmark.show.figures import series
from benchmark.show.figures.canvas import Figure, Look, Panel, looks, panel
from benchmark.show.wording import load_of, load_text

SHOWN = (
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

Curves = Sequence[tuple[Look, Sequence[float]]]


def figures(raw: RawRun, summary: Mapping[str, Any]) -> list[Figure]:
    """Cumulated shares of three metrics, and tokens per step where an arm speculates."""
    plan = raw.plan
    arms = looks([arm.name for arm in plan.arms])
    found = []
    for metric, title, over in SHOWN:
        panels = tuple(_curves(plan, series.cells_of(raw), arms, metric))
        caption = (
            f"Share of values, {over}, that are not above the one on the axis; the further left a curve, the "
            f"better. An axis ends where the {_END}th percentile of the slowest arm does, rarer values lie beyond."
        )
        if panels:
            name = metric.name.removesuffix("_s")
            looks_ = tuple(arms.values())
            found.append(
                Figure(id=f"spread-{name}", title=title, caption=caption, panels=panels, arms=looks_)
            )
    return found + _tokens(plan, summary, arms)


def _curves(plan: Plan, cells: series.Cells, arms: dict[str, Look], metric: Metric) -> Iterator[Panel]:
    for number, load in enumerate(plan.loads):
        for index, class_ in enumerate(plan.classes):
            curves = [
                (arms[arm], ordered)
                for arm in arms
                if (ordered := series.values(plan, metric, cells.get((arm, class_, load), ())))
            ]
            if curves:
                many = len(plan.loads) > 1
                where = f"{class_}, {load_text(load.concurrency, load.rate_per_s)}" if many else class_
                id_ = f"d{number}-{index}-{metric.name.removesuffix('_s')}"
                yield panel(id_, where, _alt(metric, where, curves), partial(_draw_curves, curves=curves))


def _draw_curves(axes: Axes, *, curves: Curves) -> None:
    for look, ordered in curves:
        xs, ys = series.shares(ordered)
        axes.step([xs[0], *xs], [0.0, *ys], where="post", color=look.colour)
        shown = slice(None, None, max(1, len(xs) // 8))
        axes.plot(xs[shown], ys[shown], look.marker, color=look.colour, markersize=3.2, markeredgewidth=0)
    axes.set_xlim(0, max(percentile(ordered, _END) for _, ordered in curves) * 1.05 or 1.0)
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 1000:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("ms")


def _alt(metric: Metric, where: str, curves: Curves) -> str:
    parts = [
        f"{look.arm} median {percentile(ordered, 50) * 1000:.3g} ms, 95th percentile "
        f"{percentile(ordered, 95) * 1000:.3g} ms, n {len(ordered)}"
        for look, ordered in curves
    ]
    return f"Cumulated distribution of {metric.name}, {where}: {'; '.join(parts)}."


def _tokens(plan: Plan, summary: Mapping[str, Any], arms: dict[str, Look]) -> list[Figure]:
    """Bars of how many tokens a step yielded, where a chunk stands for a step."""
    speculating = [arm.name for arm in plan.arms if arm.speculative_tokens]
    groups: dict[tuple[Any, ...], list[tuple[Look, dict[int, float], int]]] = {}
    for cell in summary["cells"]:
        spread = cell["acceptance"].get("distribution")
        if cell["arm"] in speculating and spread and not cell["acceptance"].get("caution"):
            total = sum(spread.values())
            bars = {int(tokens): times / total for tokens, times in spread.items()}
            ceiling = plan.arm(cell["arm"]).max_tokens_per_step
            groups.setdefault((cell["class"], *load_of(cell)), []).append((arms[cell["arm"]], bars, ceiling))
    panels = []
    for index, ((class_, *load), members) in enumerate(groups.items()):
        where = f"{class_}, {load_text(*load)}" if len(plan.loads) > 1 else class_
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
    shown = tuple(arms[name] for name in speculating)
    title = "Tokens per decode step"
    return (
        [Figure(id="steps", title=title, caption=caption, panels=tuple(panels), arms=shown)] if panels else []
    )


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
