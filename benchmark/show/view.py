"""A summary as rows of the page's tables: text only, so that the template decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S, TPOT, TTFT
from benchmark.plan import Load
from benchmark.show.wording import (
    UNKNOWN,
    money,
    number,
    plain,
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
FAILED = ("class", "arm", "load", "error", "for example", "requests")
EQUALITY = ("class", "treatment", "load", "pairs with the same text", "median first difference, characters")
COST = (
    *("class", "arm", "load", "$ per million output tokens", "$ per hour", "output tokens/s of the arm"),
    *("requests within the objectives", "of them per s"),
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings. The first `names` columns are words, the others numbers."""

    title: str
    headings: Row
    rows: Sequence[Row]
    names: int = 2

    def unless_empty(self) -> Table | None:
        return self if self.rows else None


def answer_lines(summary: Mapping[str, Any]) -> list[str]:
    """The result in sentences: one for each treatment and load."""
    groups: dict[tuple[str, Load], list[Mapping[str, Any]]] = {}
    for one in summary["comparisons"]:
        if one["metric"] == TPOT.name:
            groups.setdefault((one["treatment"], Place.of(one).load), []).append(one)
    lines = []
    for (treatment, load), found in groups.items():
        verdicts: dict[str, list[str]] = {}
        for one in found:
            gain = "" if one["ratio"] is None else f" ({one['ratio']:.2f}×)"
            verdicts.setdefault(one["verdict"], []).append(f"{one['class']}{gain}")
        said = "; ".join(f"{verdict} for {', '.join(classes)}" for verdict, classes in verdicts.items())
        lines.append(f"{treatment} against {found[0]['baseline']}, {load.in_words}: {said}.")
    return lines


def headline_tables(summary: Mapping[str, Any]) -> list[Table]:
    """By load: each class and treatment with its time per token, speed-up and verdict."""
    loads = dict.fromkeys(Place.of(one).load for one in summary["comparisons"])
    return [
        Table(title=load.in_words, headings=HEADLINE, rows=list(_headline_rows(summary, load)))
        for load in loads
    ]


def _headline_rows(summary: Mapping[str, Any], load: Load) -> Iterator[Row]:
    cells = {(cell["arm"], Place.of(cell)): cell for cell in summary["cells"]}
    for one in summary["comparisons"]:
        place = Place.of(one)
        if one["metric"] != TPOT.name or place.load != load:
            continue
        base, treated, p = cells[one["baseline"], place], cells[one["treatment"], place], one["p_holm"]
        yield (
            one["class"],
            one["treatment"],
            ratio_text(one),
            verdict_text(one),
            number(base[TPOT.name], 1000, 2),
            number(treated[TPOT.name], 1000, 2),
            f"{one['n_pairs']} ({one['n_prompts']})",
            tokens_per_step(treated),
            "< 0.001" if p is not None and p < 0.001 else plain(p, ".3f"),
            plain(one["detectable_ratio"], ".2f", "×"),
            f"{base['errors']} : {treated['errors']}",
        )


def cell_tables(summary: Mapping[str, Any]) -> list[Table]:
    """By load: the medians and tails of every cell."""
    rows: dict[Load, list[Row]] = {}
    for cell in summary["cells"]:
        rows.setdefault(Place.of(cell).load, []).append(_cell_row(cell))
    return [Table(title=load.in_words, headings=CELL, rows=found) for load, found in rows.items()]


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
    rows = [
        (*_names(cell), name, messages.get((cell["arm"], name), ""), str(count))
        for cell in summary["cells"]
        for name, count in cell["error_names"].items()
    ]
    return Table(title="Failed requests", headings=FAILED, rows=rows, names=5).unless_empty()


def equality_table(summary: Mapping[str, Any]) -> Table | None:
    """How often a treatment wrote the baseline's text; None where no pair was answered."""
    rows = []
    for cell in summary["cells"]:
        equality = cell["output_equality"]
        if equality and equality["n_pairs"]:
            partings = equality["first_divergence_chars"]
            middle = str(partings[len(partings) // 2]) if partings else UNKNOWN
            rows.append((*_names(cell), f"{equality['equal']} of {equality['n_pairs']}", middle))
    return Table(title="Outputs", headings=EQUALITY, rows=rows, names=3).unless_empty()


def cost_table(summary: Mapping[str, Any]) -> Table | None:
    """Cost per token and goodput of each cell; None where the plan has neither prices nor objectives."""
    rows = []
    for cell in summary["cells"]:
        cost, goodput = cell["cost"], cell["goodput"]
        if cost or goodput:
            of_cost = (UNKNOWN,) * 3
            if cost:
                of_cost = (
                    money(cost["usd_per_million_output_tokens"]),
                    money(cost["usd_per_hour"]),
                    f"{cost['output_tokens_per_s_of_arm']:,.0f}",
                )
            kept = goodput or {"share": None, "per_s": None}
            rows.append((*_names(cell), *of_cost, plain(kept["share"], ".0%"), plain(kept["per_s"], ".2f")))
    return Table(title="Cost and goodput", headings=COST, rows=rows, names=3).unless_empty()


def _names(cell: Mapping[str, Any]) -> Row:
    return cell["class"], cell["arm"], Place.of(cell).load.in_words
