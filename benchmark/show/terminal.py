"""The answer as plain text, as wide as the terminal: what to do and its numbers, or all that the summary says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmark.analyse.beside import CIRCULAR, VERDICTS
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS, VERDICT_WORDS
from benchmark.analyse.decision import AtLoad, decide
from benchmark.analyse.sentences import sentences
from benchmark.plan import Load
from benchmark.show.speed_up import past_break_even, why
from benchmark.show.tables import (
    MEDIANS,
    Table,
    cell_table,
    decision_tables,
    engine_lines,
    lean,
    lossless_lines,
    objective_tables,
    quality_lines,
    warned,
)
from benchmark.show.wording import planned_text, remarks, sentence
from core.screen import table as table_lines
from core.screen import wrapped
from core.words import count

_MOST_WARNINGS = 6


def render(summary: Mapping[str, Any]) -> str:
    """The question, what to do, its numbers, and what speaks against them."""
    decision = decide(summary)
    warnings = warned(summary)
    if len(warnings) > _MOST_WARNINGS:
        warnings[_MOST_WARNINGS:] = [
            f"and {count(len(warnings) - _MOST_WARNINGS, 'more warning')}; --all has them"
        ]
    blocks = [_text([decision.question, decision.sentence, *sentences(summary)])]
    blocks += _answer(summary, decision.at)
    return _joined([*blocks, _text(_published(summary)), _text([f"! {text}" for text in warnings])])


def _published(summary: Mapping[str, Any]) -> list[str]:
    """How many of the published figures that the run should meet it met."""
    found = [one for one in summary.get("expectations", ()) if "verdict" in one]
    if not found:
        return []
    if summary["run"]["provenance"] == "emulated":
        return [f"Published figures: {CIRCULAR}"]
    met, *others = (
        sum(one["verdict"] == code for one in found)
        for code in ("reproduced", "not reproduced", "cannot tell")
    )
    rest = [
        f"{n} {VERDICTS[code]}"
        for n, code in zip(others, ("not reproduced", "cannot tell"), strict=True)
        if n
    ]
    said = ", ".join([f"{met} of {count(len(found), 'published figure')} reproduced", *rest])
    return [f"{said} (report.html lists each)."]


def render_all(summary: Mapping[str, Any]) -> str:
    """The same for every load, then why, every cell, engines, quality, and what the numbers are."""
    decision, run = decide(summary), summary["run"]
    blocks = [_text([decision.question, decision.sentence, *sentences(summary)])]
    for at in decision.loads:
        drafted = why(at)
        tables = [*([drafted.table] if drafted else []), _cells(summary, at.load)]
        blocks += [*_answer(summary, at), *map(_drawn, tables), _text(filter(None, [past_break_even(at)]))]
    blocks += map(_drawn, objective_tables(summary))
    blocks += map(
        _text,
        (
            [f"{one['class']}, {one['treatment']}: {one['text']}." for one in run["crossover"]],
            _expected(summary),
            [*lossless_lines(summary), *engine_lines(summary), *quality_lines(summary)],
            _notes(summary),
            [f"! {remark}" for remark in remarks(summary)],
        ),
    )
    return _joined(blocks)


def _expected(summary: Mapping[str, Any]) -> list[str]:
    """What was expected of the run and how it came out; an emulated run is not compared."""
    found = summary.get("expectations", ())
    if found and summary["run"]["provenance"] == "emulated":
        return [f"Against the forecast: {CIRCULAR}"]
    return [f"Expected: {one['text']}." for one in found]


def _joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(filter(None, dict.fromkeys(blocks)))


def _answer(summary: Mapping[str, Any], at: AtLoad) -> Iterator[str]:
    """The tables of a load, or its cells where nothing is compared, and their remarks; nothing that was made up."""
    if at.by_class and {gain.verdict for gain in at.by_class} == {VERDICT_WORDS["not judged"]}:
        return
    tables = decision_tables(at)
    yield from map(_drawn, tables or [_cells(summary, at.load)])
    if at.mix:
        several = (
            f" Over the mix the intervals of {len(at.by_arm)} arms hold together; in a class they do not, and the figure of its best arm is biased upward because it was chosen as the best."
            if at.winners
            else ""
        )
        here = f" {at.of_one_start}" if at.of_one_start else ""
        yield _text(
            [
                "TPOT: time per output token, geometric mean over pairs of the same prompt. $/M: dollars per million output "
                f"tokens, prompts and waiting included. Speed-up: with its 95 % interval; verdicts are after Holm's "
                f"correction over all classes and arms.{here}{several}"
            ]
        )


def _cells(summary: Mapping[str, Any], load: Load) -> Table:
    title = f"Every cell, {load.in_words}: medians"
    return cell_table(summary, load, title, MEDIANS, "tok/step")


def _drawn(table: Table) -> str:
    """Without the columns that say the same in every row; words begin at the left."""
    if not table.rows:
        return ""
    table, same = lean(table)
    names = {i for i, heading in enumerate(table.headings) if i < table.names or heading == "verdict"}
    title = table.title + (f"; in every row {same}" if same else "")
    return "\n".join([_text([title]), *table_lines(table.headings, table.rows, names=names, rule=True)])


def _notes(summary: Mapping[str, Any]) -> list[str]:
    run = summary["run"]
    return [
        f"{run['experiment']}: {run['model']}. {sentence(run)} Run {run['id']}, {run['started']} to {run['finished']}.",
        f"n: answered requests; planned were {planned_text(run)}, warm-up excluded; tok/step is over all steps; token "
        f"counts from {run['token_source']}.",
        f"{run['interval']}; verdicts from {MIN_PROMPTS} prompts on; faster, slower: all of the interval is above {EQUIVALENT[1]}, or "
        f"below {EQUIVALENT[0]}; no difference that matters: all of it is between them. Prices per hour are the plan's.",
    ]


def _text(lines: Iterable[str]) -> str:
    return "\n".join(line for text in lines for line in wrapped(" ".join(text.split()), rest=" "))
