"""A summary, and what lies beside the records, as sentences and rows of tables: text only, so that the template decides
nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.analyse.decision import AtLoad, Decision, Gain, baseline_of
from benchmark.analyse.explanation import split_steps
from benchmark.analyse.sentences import interval, money
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S, TPOT, TTFT, Metric
from benchmark.plan import Load
from benchmark.show.wording import UNKNOWN, change, differences, failures, number, plain, tokens_per_step
from core.words import count

Row = tuple[str, ...]

DECISION = ("class", "arm", "window", "TPOT, ms", "speed-up", "verdict", "$/M")
CELL = ("class", "arm", "n", "errors")
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
FAILED = ("class", "arm", "load", "error", "for example", "requests")
EQUALITY = ("class", "treatment", "load", "pairs with the same text", "median first difference, characters")
_BY_CLASS = (
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

    def unless_empty(self) -> Table | None:
        return self if self.rows else None


def lean(table: Table) -> tuple[Table, str]:
    """A table without columns that repeat one value, and what those say; the first column stays."""
    columns = list(zip(*table.rows, strict=True))
    same = [i for i, column in enumerate(columns) if i and len(columns[i]) > 1 and len(set(column)) == 1]
    kept = [i for i in range(len(table.headings)) if i not in same]
    said = "; ".join(
        f"{table.headings[i]} {columns[i][0]}" for i in same if columns[i][0] not in ("", UNKNOWN)
    )
    left = Table(
        title=table.title,
        headings=tuple(table.headings[i] for i in kept),
        rows=[tuple(row[i] for i in kept) for row in table.rows],
        names=len([i for i in kept if i < table.names]),
    )
    return left, said


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
            change(gain.tpot_before_s, gain.tpot_after_s, lambda seconds: f"{seconds * 1000:.1f}"),
            f"{plain(gain.ratio, '.2f')}{interval(gain.low, gain.high)}",
            gain.verdict,
            change(gain.usd_before, gain.usd_after, "{:.2f}".format),
        )
        for gain in gains
    ]
    of_mix = not any(gain.class_ for gain in gains)
    headings = (*DECISION[:2], *(["baseline"] * several), *DECISION[2:])[of_mix:]
    return Table(
        title=title, headings=headings, rows=[row[of_mix:] for row in rows], names=2 + several - of_mix
    )


def cell_tables(summary: Mapping[str, Any]) -> list[Table]:
    """A table for each load: medians and tails of every cell."""
    loads = dict.fromkeys(Place.of(cell).load for cell in summary["cells"])
    return [cell_table(summary, load, load.in_words, CELL_NUMBERS, "tokens per step") for load in loads]


def cell_table(summary: Mapping[str, Any], load: Load, title: str, numbers: Numbers, steps: str) -> Table:
    """The cells of one load with these numbers; `steps` is the heading of the tokens per step."""
    rows = [
        (
            *(cell["class"], cell["arm"], str(cell["n"]), str(cell["errors"])),
            *(number(cell[metric.name], scale, digits, part) for _, metric, part, scale, digits in numbers),
            tokens_per_step(cell),
        )
        for cell in summary["cells"]
        if Place.of(cell).load == load
    ]
    return Table(title=title, headings=(*CELL, *(heading for heading, *_ in numbers), steps), rows=rows)


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


def lossless_lines(summary: Mapping[str, Any], *, alone: bool = False) -> Iterator[str]:
    """One line for each treatment that wrote something else than the baseline; `alone`: only where that is no rounding, or
    more often than the baseline itself does."""
    found = summary.get("losslessness") or {"treatments": ()}
    for one in found["treatments"]:
        if one["differing"] and (not alone or one["faults"] or one["more_than_baseline"]):
            equal = f"equal to the baseline's in {one['equal']} of {one['n_pairs']}{differences(one)}"
            why = ", ".join(f"{why}: {count}" for why, count in one["reasons"].items())
            said = [f"Answers of {one['treatment']}: {equal}{f' ({why})' if why else ''}"]
            if itself := found["baseline"]:
                share = f"{itself['differing']} of {itself['n_pairs']}"
                said.append(
                    f"the baseline differs from itself in {share} [{itself['ci_low']:.2f}, {itself['ci_high']:.2f}]"
                )
            if one["more_than_baseline"]:
                said.append(f"{one['treatment']} from it more often than that (p = {one['p_holm']:.2g})")
            yield "; ".join(said) + "."


def objective_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Which arm meets the objective at which load; empty without one."""
    rows = [
        (
            one["limit"],
            Load(concurrency=row["concurrency"], rate_per_s=row["rate_per_s"]).in_words,
            row["arm"],
            UNKNOWN if one["share"] is None else f"{one['share']:.1%}",
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
    of, found = dict.fromkeys((place.load, arm) for place, arm in cells), []
    loads = dict.fromkeys(load for load, _ in of)
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
        found += [table] if rows else []
    return found


def warned(summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know before relying on the run: failures, the run's warnings, other texts, other engines."""
    return [
        *failures(summary),
        *summary["run"]["warnings"],
        *lossless_lines(summary, alone=True),
        *engine_lines(summary, undeclared_alone=True),
    ]


def _names(cell: Mapping[str, Any]) -> Row:
    return cell["class"], cell["arm"], Place.of(cell).load.in_words


_LONGEST = 60
"""Characters of a value; what is longer is cut."""
_SHOWN = 4
"""Differences that a line names; the page has all."""


def engine_lines(summary: Mapping[str, Any], *, undeclared_alone: bool = False) -> Iterator[str]:
    """One line a treatment: what its compiled configuration has different from the baseline's, or that it is not known;
    and one for each difference that was declared with it."""
    run = summary["run"]
    for arm in run["arms"]:
        name = arm["name"]
        if name != (base := baseline_of(run, name)):
            known = summary.get("engines", {}).get(name)
            if undeclared_alone and not (known and known["undeclared"]):
                continue
            yield f"Engine of {name} against {base}: {_engine(name, known)}"
            for text in () if undeclared_alone else arm.get("also_changes", ()):
                yield f"Engine of {name}, declared beside speculation: {text}."
    if not undeclared_alone:
        yield from split_steps(summary)


def _engine(arm: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"not compared, engines/{arm}.json is not beside the records."
    if not found["compared"]:
        return "not compared, the baseline's compiled configuration was not there."
    beyond = found["undeclared"]
    if not beyond:
        return f"equal but for the {count(found['declared'], 'value')} that speculation sets."
    named = "; ".join(
        f"{one['path']} {_value(one['baseline'])} -> {_value(one['this'])}" for one in beyond[:_SHOWN]
    )
    rest = f"; and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    return f"apart from the {count(found['declared'], 'value')} that speculation sets, these differ: {named}{rest}."


def engine_table(summary: Mapping[str, Any]) -> Table | None:
    """Every value that differs beyond speculation; None where none is known to."""
    rows = [
        (arm, one["path"], _value(one["baseline"]), _value(one["this"]))
        for arm, found in summary.get("engines", {}).items()
        for one in found["undeclared"]
    ]
    headings = ("arm", "key", "baseline", "this arm")
    return Table(title="Compiled configurations", headings=headings, rows=rows, names=4).unless_empty()


def quality_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """One line for each treatment and way of reading answers; what the questions were; or that no arm was asked."""
    if found := summary.get("sense"):
        yield f"Sense: {found['text']}."
    quality = summary.get("quality")
    if quality is None:
        yield "Quality: not asked, no answers to gsm8k are beside the records."
        return
    for one in quality["comparisons"]:
        yield f"Quality, gsm8k ({one['filter']}): {one['treatment']} against {one['baseline']}, {_difference(one)}"
    if not quality["comparisons"]:
        yield f"Quality: only {', '.join(sorted({one['arm'] for one in quality['scores']}))} was asked, nothing is compared."
    if (questions := quality["questions"]) is None:
        yield "Quality: which questions were asked is not recorded."
    else:
        yield f"Questions: {questions['dataset']} at commit {questions['revision']}."


def _difference(one: Mapping[str, Any]) -> str:
    if not one["n"]:
        return "no question in common."
    difference, low, high = (one[name] * 100 for name in ("difference", "ci_low", "ci_high"))
    if high < 0:
        verdict = "worse"
    elif low > 0:
        verdict = "better"
    else:
        verdict = f"no difference shown, a loss of more than {-low:.1f} points is excluded at 95 %"
    return (
        f"{difference:+.1f} points [{low:+.1f}, {high:+.1f}] over {count(one['n'], 'question')}, "
        f"{one['gained']} gained, {one['lost']} lost (McNemar p = {one['p_value']:.3f}): {verdict}."
    )


def quality_table(summary: Mapping[str, Any]) -> Table | None:
    """The share of right answers of every arm; None where no arm was asked."""
    if (quality := summary.get("quality")) is None:
        return None
    rows = []
    for one in quality["scores"]:
        share = f"{one['correct'] / one['n']:.1%}" if one["n"] else UNKNOWN
        rows.append((one["arm"], one["filter"], f"{one['correct']} of {one['n']}", share))
    return Table(title="gsm8k", headings=("arm", "answers read by", "right", "share"), rows=rows)


def _value(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
