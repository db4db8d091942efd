"""A summary, and what lies beside the records, as rows of tables: text only, so that templates decide nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import VERDICT_WORDS
from benchmark.analyse.decision import AtLoad, Decision, Gain
from benchmark.analyse.sentences import interval, money
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S, TPOT, TTFT, Metric
from benchmark.plan import Load

Row = tuple[str, ...]
UNKNOWN = "-"
Numbers = tuple[tuple[str, Metric, str, float, int], ...]
"""Heading, metric, statistic, scale and digits."""
MEDIANS: Numbers = (
    ("TTFT ms", TTFT, "p50", 1000, 1),
    ("TPOT ms", TPOT, "p50", 1000, 2),
    ("E2E s", E2E, "p50", 1, 2),
)
CELL_NUMBERS: Numbers = (
    ("TTFT p50, ms", TTFT, "p50", 1000, 1),
    ("p95", TTFT, "p95", 1000, 1),
    ("TPOT p50, ms", TPOT, "p50", 1000, 2),
    ("p95", TPOT, "p95", 1000, 2),
    ("chunk gap p50, ms", INTER_CHUNK_LATENCY, "p50", 1000, 1),
    ("p99", INTER_CHUNK_LATENCY, "p99", 1000, 1),
    ("E2E p50, s", E2E, "p50", 1, 2),
    ("p95", E2E, "p95", 1, 2),
    ("tokens/s p50", OUTPUT_TOKENS_PER_S, "p50", 1, 1),
)
_BY_CLASS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("Dollars per million output tokens", "cost", "usd_per_million_output_tokens", money),
    ("Requests within every limit of the SLO (goodput)", "goodput", "share", "{:.0%}".format),
)
"""Title, part of a cell, key and form."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings. The first `names` columns are words, the others numbers."""

    title: str
    headings: Row
    rows: Sequence[Row]
    names: int = 2


def lean(table: Table) -> tuple[Table, str]:
    """A table without columns that repeat one value, and what those say; the first column stays."""
    columns = list(zip(*table.rows, strict=True))
    same = [i for i, column in enumerate(columns) if i and len(columns[i]) > 1 and len(set(column)) == 1]
    kept = [i for i in range(len(table.headings)) if i not in same]
    repeated = "; ".join(
        f"{table.headings[i]} {columns[i][0]}" for i in same if columns[i][0] not in ("", UNKNOWN)
    )
    left = Table(
        title=table.title,
        headings=tuple(table.headings[i] for i in kept),
        rows=[tuple(row[i] for i in kept) for row in table.rows],
        names=len([i for i in kept if i < table.names]),
    )
    return left, repeated


def plain(value: float | None, form: str, unit: str = "") -> str:
    """`value` in a format; `-` where it is not known."""
    return UNKNOWN if value is None else f"{value:{form}}{unit}"


def change(before: float | None, after: float | None, form: Callable[[float], str], to: str = "->") -> str:
    """Two values with an arrow between them; `-` where one is not known."""
    return UNKNOWN if before is None or after is None else f"{form(before)} {to} {form(after)}"


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _names(cell: Mapping[str, Any]) -> Row:
    return cell["class"], cell["arm"], Place.of(cell).load.in_words


def _some(table: Table) -> Table | None:
    return table if table.rows else None


def decision_tables(at: AtLoad) -> list[Table]:
    """What a decision rests on: each class and the mix; of several treatments the best of each class, then all over the
    mix. Nothing where nothing is compared."""
    title = f"{at.load.in_words}, {at.baseline} -> treatment"
    if not at.by_class:
        return []
    if len(at.by_arm) < 2:
        return [_gains(title, [*at.by_class, *([at.mix] if at.mix and len(at.by_class) > 1 else ())])]
    return [
        _gains(f"{title}, the best of each class", at.by_class),
        _gains("Every treatment, all classes in equal shares", at.over_mix),
    ]


def every_comparison(decision: Decision) -> list[Table]:
    """A table for each load: each treatment in each class."""
    own = {at.load: [gain for gain in at.by_own if gain.class_] for at in decision.loads}
    return [_gains(at.load.in_words, [*at.by_window, *own[at.load]]) for at in decision.loads if at.by_window]


def _gains(title: str, gains: Sequence[Gain]) -> Table:
    several = len({gain.baseline for gain in gains}) > 1
    rows = [
        (
            *(gain.class_ or "all, equal shares", gain.arm, *([gain.baseline] * several), str(gain.window)),
            change(gain.tpot_before_s, gain.tpot_after_s, ms),
            f"{plain(gain.ratio, '.2f')}{interval(gain.low, gain.high)}",
            gain.verdict,
            change(gain.usd_before, gain.usd_after, "{:.2f}".format),
        )
        for gain in gains
    ]
    of_mix = not any(gain.class_ for gain in gains)
    headings = ("class", "arm", *(["baseline"] * several), "window", "TPOT, ms", "speed-up", "verdict", "$/M")
    rows = [row[of_mix:] for row in rows]
    return Table(title=title, headings=headings[of_mix:], rows=rows, names=2 + several - of_mix)


def cell_tables(summary: Mapping[str, Any]) -> list[Table]:
    """A table for each load: medians and tails of every cell."""
    loads = dict.fromkeys(Place.of(cell).load for cell in summary["cells"])
    return [cell_table(summary, load, load.in_words, CELL_NUMBERS, "tokens per step") for load in loads]


def cell_table(summary: Mapping[str, Any], load: Load, title: str, numbers: Numbers, steps: str) -> Table:
    """The cells of one load with these numbers; `steps` is the heading of the tokens per step."""
    rows = []
    for cell in (cell for cell in summary["cells"] if Place.of(cell).load == load):
        values = (
            cell[metric.name] and cell[metric.name][part] * scale for _, metric, part, scale, _ in numbers
        )
        shown = (plain(value, f".{digits}f") for value, (*_, digits) in zip(values, numbers, strict=True))
        known = cell["class"], cell["arm"], str(cell["n"]), str(cell["errors"])
        rows.append((*known, *shown, plain(cell["acceptance"]["tokens_per_step"], ".2f")))
    headings = ("class", "arm", "n", "errors", *(heading for heading, *_ in numbers), steps)
    return Table(title=title, headings=headings, rows=rows)


def error_table(summary: Mapping[str, Any], messages: Mapping[tuple[str, str], str]) -> Table | None:
    """Failed requests by cell and name, with an example of what the name stood for; None without a failure."""
    rows = [
        (*_names(cell), name, messages.get((cell["arm"], name), ""), str(count))
        for cell in summary["cells"]
        for name, count in cell["error_names"].items()
    ]
    headings = ("class", "arm", "load", "error", "for example", "requests")
    return _some(Table(title="Failed requests", headings=headings, rows=rows, names=5))


def equality_table(summary: Mapping[str, Any]) -> Table | None:
    """How often a treatment wrote the baseline's text; None where no pair was answered."""
    rows = []
    for cell in summary["cells"]:
        equality = cell["output_equality"]
        if equality and equality["n_pairs"]:
            partings = equality["first_divergence_chars"]
            middle = str(partings[len(partings) // 2]) if partings else UNKNOWN
            rows.append((*_names(cell), f"{equality['equal']} of {equality['n_pairs']}", middle))
    headings = (
        "class",
        "treatment",
        "load",
        "pairs with the same text",
        "median first difference, characters",
    )
    return _some(Table(title="Outputs", headings=headings, rows=rows, names=3))


def objective_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Which arm meets the objective at which load; empty without one."""
    rows = [
        (
            one["limit"],
            Load(concurrency=row["concurrency"], rate_per_s=row["rate_per_s"]).in_words,
            row["arm"],
            plain(one["share"], ".1%"),
            f"{math.floor(one['low'] * 1000) / 1000:.1%}",
            f"{math.ceil(one['high'] * 1000) / 1000:.1%}",
            str(one["n"]),
            str(one["prompts"]),
            one["outcome"],
        )
        for row in summary.get("objectives", ())
        for one in row["limits"]
    ]
    headings = ("limit", "load", "arm", "within", "at least", "at most", "requests", "prompts", "verdict")
    title = "Objective: share of requests within the limit, with its one-sided 95 % bounds"
    return [Table(title=title, headings=headings, rows=rows, names=3)] if rows else []


def cost_by_class(summary: Mapping[str, Any]) -> list[Table]:
    """An arm at a load a row and a class a column: dollars per million output tokens, and what kept the SLO; one row where
    that is the same everywhere."""
    made_up = {
        (Place.of(one), one["treatment"]) for one in summary["comparisons"] if one["verdict"] == "not judged"
    }
    known = {(Place.of(cell), cell["arm"]): cell for cell in summary["cells"]}
    cells = {key: cell for key, cell in known.items() if key not in made_up}
    classes = tuple(dict.fromkeys(place.class_ for place, _ in cells))
    of = dict.fromkeys((place.load, arm) for place, arm in cells)
    loads = dict.fromkeys(load for load, _ in of)
    made = []
    for title, part, key, form in _BY_CLASS:
        rows = []
        for load, arm in of:
            parts = [(cells.get((Place(class_, load), arm)) or {}).get(part) for class_ in classes]
            values = [UNKNOWN if one is None or one[key] is None else form(one[key]) for one in parts]
            rows += [(load.in_words, arm, *values)] if {*values} != {UNKNOWN} else []
        columns = classes
        if len(classes) > 1 and all(len({*row[2:]}) == 1 for row in rows):
            rows, columns = [row[:3] for row in rows], ("every class",)
        if len(rows) > 1 and len({row[2:] for row in rows}) == 1:
            rows = [("all", "all", *rows[0][2:])]
        alone = len(loads) == 1
        named = f"{title}, {next(iter(loads)).in_words}" if alone else title
        headings = ("load", "arm", *columns)[alone:]
        table = Table(title=named, headings=headings, rows=[row[alone:] for row in rows], names=2 - alone)
        made += [table] if rows else []
    return made


def value_text(value: Any) -> str:
    """A value of a compiled configuration, of at most 60 characters."""
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def engine_table(summary: Mapping[str, Any]) -> Table | None:
    """Every value that differs beyond speculation; None where none is known to."""
    rows = [
        (arm, one["path"], value_text(one["baseline"]), value_text(one["this"]))
        for arm, engine in summary.get("engines", {}).items()
        for one in engine["undeclared"]
    ]
    headings = ("arm", "key", "baseline", "this arm")
    return _some(Table(title="Compiled configurations", headings=headings, rows=rows, names=4))


def quality_table(summary: Mapping[str, Any]) -> Table | None:
    """The share of right answers of every arm; None where no arm was asked."""
    if (quality := summary.get("quality")) is None:
        return None
    rows = []
    for one in quality["scores"]:
        share = f"{one['correct'] / one['n']:.1%}" if one["n"] else UNKNOWN
        rows.append((one["arm"], one["filter"], f"{one['correct']} of {one['n']}", share))
    return Table(title="gsm8k", headings=("arm", "answers read by", "right", "share"), rows=rows)


def verdict_text(comparison: Mapping[str, Any]) -> str:
    """The verdict in words; of the headline metric, the one after Holm's correction."""
    return VERDICT_WORDS[comparison["verdict_holm"] or comparison["verdict"]]


def two_runs_table(rows: Sequence[Mapping[str, Any]], arm: str) -> Table:
    """An arm's times, or a treatment's speed-ups, in an old run and in a new one."""
    scale, unit = (1000, " ms") if arm == "arm" else (1, "")
    headings = (
        "class",
        "load",
        "arm",
        f"old{unit}",
        f"new{unit}",
        "old / new" if unit else "new / old",
        "verdict",
    )
    shown = []
    for row in rows:
        load = (
            str(row["concurrency"] or "replay") if row["rate_per_s"] is None else f"{row['rate_per_s']:g}/s"
        )
        times = (plain(row[when] and row[when] * scale, ".2f") for when in ("old", "new"))
        known = row["ratio"] is not None and row["ci_low"] is not None
        ends = f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if known else ""
        shown.append(
            (row["class"], load, row[arm], *times, f"{plain(row['ratio'], '.3f')}{ends}", verdict_text(row))
        )
    return Table(title="", headings=headings, rows=shown, names=3)


def windows_table(cell: Mapping[str, Any]) -> Table:
    """What each window yields and costs in one class, `*` before the recommended one, `?` before those that are equal."""
    rows = []
    for row in cell["by_k"]:
        mark = "?" if row["k"] in cell["not_told_apart"] else "*" if row["k"] == cell["recommended_k"] else ""
        timed = row["k"] in cell["timed_s"]
        tokens = f"{row['tokens_per_step']:.2f}"
        tokens += interval(row["tokens_per_step_low"], row["tokens_per_step_high"])
        speed_up = f"{row['speed_up']:.2f}{interval(row['ci_low'], row['ci_high']) if timed else ''}"
        known = "timed" if timed else f"{row['low']:.2f} to {row['high']:.2f}"
        times = f"{row['step_s'] * 1000:.2f}", f"{row['tpot_s'] * 1000:.2f}"
        rows.append((f"{mark}{row['k']:>2}", tokens, *times, speed_up, known))
    headings = ("k", "tokens/step", "step ms", "TPOT ms", "speed-up", "range")
    return Table(title="", headings=headings, rows=rows, names=0)


def lines_of(table: Table, *, indent: str = "") -> Iterator[str]:
    """The table on a terminal. Under a title, without the columns that say the same in every row."""
    from core import screen

    same = ""
    if table.title:
        table, same = lean(table)
        title = table.title + (f"; in every row {same}" if same else "")
        yield from screen.wrapped(title, rest=" ")
    words = {i for i, head in enumerate(table.headings) if i < table.names or head in ("verdict", "range")}
    rule = bool(table.title)
    yield from screen.table(table.headings, table.rows, names=words, indent=indent, rule=rule)
