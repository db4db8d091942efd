"""The tables of a result. Rows are text only, so that templates only print them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trnspec.benchmark.analyse.decision import AtLoad, at_loads
from trnspec.benchmark.analyse.result import Comparison, Outcome, Result
from trnspec.benchmark.analyse.result_parts import Cell
from trnspec.benchmark.analyse.sentences import interval, money
from trnspec.benchmark.metrics import E2E, INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S, TPOT, TTFT, Metric
from trnspec.benchmark.plan import Load
from trnspec.benchmark.show.drawing import Axis
from trnspec.core import screen
from trnspec.core.words import count

Row = tuple[str, ...]
UNKNOWN = "-"
OUTCOMES = {"withheld": "Withheld", "caution": "Caution", "not asked": "Not checked", "fine": "Passed"}
"""The outcome of a check in words."""
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


class RowPlot(NamedTuple):
    """The picture in a row: shapes in a box of 100 by 20. `kind` and each shape have a class in the style sheet."""

    kind: str
    shapes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """A table. The first `names` columns are words, the others numbers. A table without rows is not shown."""

    title: str
    headings: Row
    rows: Sequence[Row]
    names: int = 2
    plots: Sequence[RowPlot] = ()
    """On the page, a picture for each row between words and numbers, with a common axis."""
    axis: Axis | None = None
    shaded: tuple[float, ...] = ()
    """Two values of the axis; the range between them is shaded."""
    total: bool = False
    """Whether the last row is a total."""

    def __bool__(self) -> bool:
        return bool(self.rows)


def plain(value: float | None, form: str, unit: str = "") -> str:
    """`value` in a format; `-` if unknown."""
    return UNKNOWN if value is None else f"{value:{form}}{unit}"


def change(before: float | None, after: float | None, form: Callable[[float], str], to: str = "->") -> str:
    """Two values with an arrow between them; `-` if one is unknown."""
    return UNKNOWN if before is None or after is None else f"{form(before)} {to} {form(after)}"


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def evidence_lines(result: Result, *outcomes: Outcome) -> list[tuple[str, str]]:
    """For each check with one of these outcomes, the outcome in words and a line; checks that say the same share one."""
    said: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        for row in result.evidence:
            if row.outcome == outcome:
                text = "; ".join(filter(None, (row.says, row.remedy)))
                about = [name for name in (row.arm, row.class_) if name and name not in row.says]
                name = f"{row.check} ({', '.join(about)})" if about else row.check
                said.setdefault((outcome, text), []).append(name)
    return [
        (OUTCOMES[outcome], f"{', '.join(dict.fromkeys(checks))}: {text}")
        for (outcome, text), checks in said.items()
    ]


def other_checks(result: Result) -> list[str]:
    """The names of the checks that were not made, and of those that passed: a sentence each."""
    found = {
        outcome: dict.fromkeys(row.check for row in result.evidence if row.outcome == outcome)
        for outcome in ("not asked", "fine")
    }
    return [f"{OUTCOMES[outcome]}: {', '.join(checks)}." for outcome, checks in found.items() if checks]


def _names(cell: Cell) -> Row:
    return cell.class_ or "", cell.arm, cell.load.in_words


def decision_tables(at: AtLoad) -> list[Table]:
    """The tables for a decision: each class and the mix. With several treatments, the best of each class, then all over the mix. Empty if
    nothing is compared."""
    title = at.load.in_words
    if not at.by_class:
        return []
    if len(at.by_arm) < 2:
        return [_gains(title, [*at.by_class, *([at.mix] if at.mix and len(at.by_class) > 1 else ())])]
    best = _gains(f"{title}, the best of each class", at.by_class)
    return [best, _gains(f"Every treatment, {_whole(at.by_arm[0], 'all classes in')}", at.by_arm)]


def every_comparison(result: Result) -> list[Table]:
    """A table for each load: each treatment in each class."""
    compared = (at for at in at_loads(result) if at.by_window)
    return [_gains(at.load.in_words, at.by_window) for at in compared]


def _whole(mix: Comparison, before: str) -> str:
    """The name of the mix."""
    equal = len({round(one.share, 9) for one in mix.classes if one.share}) < 2
    return f"{before} {'equal' if equal else 'your'} shares"


def _gains(title: str, ones: Sequence[Comparison]) -> Table:
    """A row for each comparison; the arms are in the title if all rows have the same."""
    pairs, baselines = {(one.baseline, one.treatment) for one in ones}, {one.baseline for one in ones}
    if len(baselines) == 1:
        drafting = f" ({count(ones[0].window, 'draft token')})" if ones[0].window else ""
        title += f", {ones[0].baseline} -> {'arm' if len(pairs) > 1 else f'{ones[0].treatment}{drafting}'}"
    by_class, several = any(one.class_ for one in ones), len(pairs) > 1
    rows, columns = [], dict[str, str]()
    for one in ones:
        columns = {"class": one.class_ or _whole(one, "all,")} if by_class else {}
        columns |= {"arm": one.treatment} if several else {}
        columns |= {"baseline": one.baseline} if len(baselines) > 1 else {}
        columns |= {"draft tokens": str(one.window)} if several else {}
        columns |= {
            "TPOT, ms": change(one.baseline_tpot_s, one.treatment_tpot_s, ms),
            "speed-up": f"{plain(one.ratio, '.2f')}{interval(one.ci_low, one.ci_high)}",
            "verdict": one.verdict,
            "$/M": change(one.usd_before, one.usd_after, "{:.2f}".format),
        }
        rows.append(tuple(columns.values()))
    return Table(title, tuple(columns), rows, names=by_class + several + (len(baselines) > 1))


def cell_tables(result: Result) -> list[Table]:
    """A table for each load: medians and tails of every cell."""
    return [cell_table(result, load, load.in_words, CELL_NUMBERS, "tokens per step") for load in result.loads]


def cell_table(result: Result, load: Load, title: str, numbers: Numbers, steps: str) -> Table:
    """The cells of one load with these numbers; `steps` is the heading for the tokens per step. Dollars of an acceptance that an emulator
    made up are not known."""
    rows, priced = [], any(cell.cost for cell in result.cells)
    withheld = (one for one in result.comparisons if one.verdict == "withheld" and not one.ratio)
    made_up = {(one.place, one.treatment) for one in withheld}
    for cell in (cell for cell in result.cells if cell.load == load):
        own = [getattr(cell, metric.name) for _, metric, *_ in numbers]
        shown = (
            plain(known and getattr(known, part) * scale, f".{digits}f")
            for known, (_, _, part, scale, digits) in zip(own, numbers, strict=True)
        )
        names = cell.class_ or "", cell.arm, str(cell.n), str(cell.errors)
        known = cell.cost if cell.cost and (cell.place, cell.arm) not in made_up else None
        usd = [money(known.usd_per_million_output_tokens) if known else UNKNOWN] * priced
        rows.append((*names, *shown, plain(cell.acceptance.tokens_per_step, ".2f"), *usd))
    headings = *(heading for heading, *_ in numbers), steps, *["$/M"] * priced
    return Table(title, ("class", "arm", "n", "errors", *headings), rows)


def error_table(result: Result, messages: Mapping[tuple[str, str], str]) -> Table:
    """Failed requests by cell and name, with an example of a message."""
    rows = [
        (*_names(cell), name, messages.get((cell.arm, name), ""), str(count))
        for cell in result.cells
        for name, count in cell.error_names.items()
    ]
    return Table("Failed requests", ("class", "arm", "load", "error", "for example", "requests"), rows, 5)


def equality_table(result: Result) -> Table:
    """The pairs in which a treatment wrote the same text as the baseline."""
    rows = []
    for cell in result.cells:
        equality = cell.output_equality
        if equality and equality.n_pairs:
            places = equality.first_divergence_chars
            middle = str(places[len(places) // 2]) if places else UNKNOWN
            rows.append((*_names(cell), f"{equality.equal} of {equality.n_pairs}", middle))
    same = ("pairs with the same text", "median first difference, characters")
    return Table("Outputs", ("class", "treatment", "load", *same), rows, 3)


def load_table(result: Result) -> Table:
    """The last load at which each treatment pays and the first at which it costs, over all classes and by class; empty if the run has one
    load or one class."""
    known = result.pays_up_to
    several = len({row.class_ for row in known}) > 2
    rows = [
        (
            *(row.treatment, row.class_ or f"all, {'your' if result.run.mix else 'equal'} shares"),
            *("none" if load is None else f"{load:g}" for load in (row.pays, row.costs)),
        )
        for row in known
        if several
    ]
    by = {"rate": "requests/s", "concurrency": "concurrent requests"}
    unit = by[known[0].by] if known else ""
    title = f"Loads in {unit}: the last at which an arm pays, and the first above that at which it costs"
    return Table(title, ("arm", "class", "last that pays", "first that costs"), rows)


def limits_table(result: Result) -> Table:
    """The share of requests within each limit of the SLO and within all of them, by load and arm."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in result.limits_kept:
        limit = f" {row.limit_s:g} s" if row.limit_s is not None else ""
        name = row.metric.removesuffix("_s").upper() + limit if row.metric else "all"
        own = rows.setdefault((row.load.in_words, row.arm), {})
        own[name] = f"{100 * row.share:.1f} % [{100 * row.low:.1f}, {100 * row.high:.1f}]"
        own |= {" requests": str(row.n), " prompts": str(row.prompts)}
    every = dict.fromkeys(name for own in rows.values() for name in own)
    names = sorted(every, key=lambda name: name.startswith(" "))
    title = "Requests within the limits of the SLO, with the 95 % interval over prompts"
    cells = [(*at, *(own.get(name, UNKNOWN) for name in names)) for at, own in rows.items()]
    return Table(title, ("load", "arm", *(name.strip() for name in names)), cells)


def value_text(value: Any) -> str:
    """A value of a compiled configuration, of at most 60 characters."""
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def engine_table(result: Result) -> Table:
    """Every undeclared difference between compiled configurations."""
    rows = [
        (arm, row.path, value_text(row.baseline), value_text(row.this))
        for arm, engine in result.engines.items()
        for row in engine.undeclared
    ]
    return Table("Compiled configurations", ("arm", "key", "baseline", "this arm"), rows, names=4)


def quality_table(result: Result) -> Table:
    """The share of correct answers of every arm that was asked."""
    rows = []
    for row in result.quality.scores if result.quality else ():
        share = f"{row.correct / row.n:.1%}" if row.n else UNKNOWN
        rows.append((row.arm, row.filter, f"{row.correct} of {row.n}", share))
    return Table("gsm8k", ("arm", "answers read by", "right", "share"), rows)


def windows_table(cell: Mapping[str, Any]) -> Table:
    """Yield and cost of each window in one class. `*` marks the recommended one, `?` windows that are statistically equal."""
    rows = []
    for row in cell["by_k"]:
        mark = "?" if row["k"] in cell["not_told_apart"] else "*" if row["k"] == cell["recommended_k"] else ""
        timed = row["k"] in cell["timed_s"]
        ends = interval(row["tokens_per_step_low"], row["tokens_per_step_high"])
        speed_up = f"{row['speed_up']:.2f}{interval(row['ci_low'], row['ci_high']) if timed else ''}"
        known = "timed" if timed else f"{row['low']:.2f} to {row['high']:.2f}"
        times = f"{row['step_s'] * 1000:.2f}", f"{row['tpot_s'] * 1000:.2f}"
        rows.append((f"{mark}{row['k']:>2}", f"{row['tokens_per_step']:.2f}{ends}", *times, speed_up, known))
    return Table("", ("window", "tokens/step", "step ms", "TPOT ms", "speed-up", "range"), rows, names=0)


def lines_of(table: Table, *, indent: str = "") -> Iterator[str]:
    """The lines of a table on a terminal."""
    if table.title:
        yield from screen.wrapped(table.title, rest=" ")
    words = {i for i, head in enumerate(table.headings) if i < table.names or head in ("verdict", "range")}
    rule = bool(table.title)
    yield from screen.table(table.headings, table.rows, names=words, indent=indent, rule=rule)
