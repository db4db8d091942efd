"""A summary as rows of the page's tables: text only, so that the template decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S, TPOT, TTFT
from benchmark.show.wording import (
    UNKNOWN,
    load_of,
    load_text,
    money,
    number,
    place_of,
    ratio_text,
    tokens_per_step,
    verdict_text,
)

Row = tuple[str, ...]

HEADLINE = (
    *("class", "treatment", "speed-up [95\u00a0%]", "verdict", "baseline TPOT, ms", "TPOT, ms"),
    *("pairs (prompts)", "tokens per step", "p (Holm)", "could show", "errors"),
)
CELL = (
    *("class", "arm", "n", "errors", "TTFT p50, ms", "p95", "TPOT p50, ms", "p95"),
    *("chunk gap p50, ms", "p99", "E2E p50, s", "p95", "tokens/s p50", "tokens per step"),
)
COST = ("class", "arm", "load", "$ per million output tokens", "$ per hour", "output tokens/s of the arm")
GOODPUT = ("requests within the objectives", "of them per s")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings. The first `names` columns are words, the others numbers."""

    title: str
    headings: Row
    rows: tuple[Row, ...]
    names: int = 2


def answer_lines(summary: Mapping[str, Any]) -> list[str]:
    """The result in sentences: one for each treatment and load."""
    heads = [one for one in summary["comparisons"] if one["metric"] == TPOT.name]
    groups = dict.fromkeys((one["treatment"], load_of(one)) for one in heads)
    lines = []
    for treatment, load in groups:
        found = [one for one in heads if (one["treatment"], load_of(one)) == (treatment, load)]
        parts = []
        for verdict in dict.fromkeys(one["verdict"] for one in found):
            parts.append(f"{verdict} for {_listed([one for one in found if one['verdict'] == verdict])}")
        lines.append(f"{treatment} against {found[0]['baseline']}, {load_text(*load)}: {'; '.join(parts)}.")
    return lines


def _listed(found: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        one["class"] if one["ratio"] is None else f"{one['class']} ({one['ratio']:.2f}×)" for one in found
    )


def headline_tables(summary: Mapping[str, Any]) -> list[Table]:
    """By load: each class and treatment with its time per token, speed-up and verdict."""
    return [
        Table(title=load_text(*load), headings=HEADLINE, rows=tuple(_headline_rows(summary, load)))
        for load in dict.fromkeys(load_of(one) for one in summary["comparisons"])
    ]


def _headline_rows(summary: Mapping[str, Any], load: tuple[int | None, float | None]) -> Iterator[Row]:
    cells = {(cell["arm"], *place_of(cell)): cell for cell in summary["cells"]}
    for one in summary["comparisons"]:
        if one["metric"] != TPOT.name or load_of(one) != load:
            continue
        place = place_of(one)
        base, treated = cells[(one["baseline"], *place)], cells[(one["treatment"], *place)]
        yield (
            one["class"],
            one["treatment"],
            ratio_text(one),
            verdict_text(one),
            number(base[TPOT.name], 1000, 2),
            number(treated[TPOT.name], 1000, 2),
            f"{one['n_pairs']} ({one['n_prompts']})",
            tokens_per_step(treated),
            _probability(one.get("p_holm")),
            UNKNOWN if one.get("detectable_ratio") is None else f"{one['detectable_ratio']:.2f}×",
            f"{base['errors']} : {treated['errors']}",
        )


def cell_tables(summary: Mapping[str, Any]) -> list[Table]:
    """By load: the medians and tails of every cell."""
    found = []
    for load in dict.fromkeys(load_of(cell) for cell in summary["cells"]):
        rows = tuple(_cell_row(cell) for cell in summary["cells"] if load_of(cell) == load)
        found.append(Table(title=load_text(*load), headings=CELL, rows=rows))
    return found


def _cell_row(cell: Mapping[str, Any]) -> Row:
    return (
        cell["class"],
        cell["arm"],
        str(cell["n"]),
        str(cell["errors"]),
        number(cell[TTFT.name], 1000, 1),
        number(cell[TTFT.name], 1000, 1, "p95"),
        number(cell[TPOT.name], 1000, 2),
        number(cell[TPOT.name], 1000, 2, "p95"),
        number(cell[INTER_CHUNK_LATENCY.name], 1000, 1),
        number(cell[INTER_CHUNK_LATENCY.name], 1000, 1, "p99"),
        number(cell[E2E.name], 1, 2),
        number(cell[E2E.name], 1, 2, "p95"),
        number(cell[OUTPUT_TOKENS_PER_S.name], 1, 1),
        tokens_per_step(cell),
    )


def error_table(summary: Mapping[str, Any], messages: Mapping[tuple[str, str], str]) -> Table | None:
    """Failed requests by cell and name, with an example of what the name stood for; None without a failure."""
    rows = tuple(
        (
            cell["class"],
            cell["arm"],
            load_text(*load_of(cell)),
            name,
            messages.get((cell["arm"], name), ""),
            str(count),
        )
        for cell in summary["cells"]
        for name, count in cell["error_names"].items()
    )
    headings = ("class", "arm", "load", "error", "for example", "requests")
    return Table(title="Failed requests", headings=headings, rows=rows, names=5) if rows else None


def equality_table(summary: Mapping[str, Any]) -> Table | None:
    """How often a treatment wrote the baseline's text; None where no pair was answered."""
    rows = []
    for cell in summary["cells"]:
        equality = cell["output_equality"]
        if equality and equality["n_pairs"]:
            partings = equality["first_divergence_chars"]
            middle = str(partings[len(partings) // 2]) if partings else UNKNOWN
            share = f"{equality['equal']} of {equality['n_pairs']}"
            rows.append((cell["class"], cell["arm"], load_text(*load_of(cell)), share, middle))
    headings = (
        "class",
        "treatment",
        "load",
        "pairs with the same text",
        "median first difference, characters",
    )
    return Table(title="Outputs", headings=headings, rows=tuple(rows), names=3) if rows else None


def cost_table(summary: Mapping[str, Any]) -> Table | None:
    """Cost per token and goodput of each cell; None where the plan has neither prices nor objectives."""
    rows = []
    for cell in summary["cells"]:
        cost, goodput = cell.get("cost"), cell.get("goodput")
        if cost or goodput:
            rows.append(
                (cell["class"], cell["arm"], load_text(*load_of(cell)), *_cost(cost), *_goodput(goodput))
            )
    headings = (*COST, *GOODPUT)
    return Table(title="Cost and goodput", headings=headings, rows=tuple(rows), names=3) if rows else None


def _cost(cost: Mapping[str, Any] | None) -> Row:
    if not cost:
        return (UNKNOWN,) * 3
    per_million, rate = cost["usd_per_million_output_tokens"], cost["output_tokens_per_s_of_arm"]
    return (
        UNKNOWN if per_million is None else money(per_million),
        money(cost["usd_per_hour"]),
        UNKNOWN if rate is None else f"{rate:,.0f}",
    )


def _goodput(goodput: Mapping[str, Any] | None) -> Row:
    if not goodput:
        return (UNKNOWN,) * 2
    share, per_s = goodput["share"], goodput["per_s"]
    return (UNKNOWN if share is None else f"{share:.0%}", UNKNOWN if per_s is None else f"{per_s:.2f}")


def _probability(p: float | None) -> str:
    if p is None:
        return UNKNOWN
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
