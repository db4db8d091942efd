"""The answer as plain text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS
from benchmark.metrics import E2E, TPOT, TTFT
from benchmark.plan import Load
from benchmark.show.tables import engine_lines, quality_lines
from benchmark.show.wording import (
    UNKNOWN,
    headline,
    number,
    plain,
    planned_text,
    ratio_text,
    remarks,
    sentence,
    tokens_per_step,
    verdict_text,
)

WIDTH = 100
_HEADINGS = ("class", "arm", "n", "err", "TTFT ms", "TPOT ms", "E2E s", "tok/step", "speed-up (TPOT)")
_REASONS = ("why", "arm", "tok/step", "step time", "expected", "found", "$/M tokens", "baseline $/M")
_WHY = (
    "Why: a treatment gains where a step yields more tokens (tok/step, over all steps) than it takes times the "
    "baseline's (step time); their ratio is the speed-up to expect."
)


def render(summary: Mapping[str, Any]) -> str:
    """Table, then what its numbers are and what to beware of."""
    parts = [_wrapped(_title(summary["run"]))]
    for load in dict.fromkeys(Place.of(cell).load for cell in summary["cells"]):
        rows = [_row(cell, summary) for cell in summary["cells"] if Place.of(cell).load == load]
        parts.append(f"\n{load.in_words}\n{_table(_HEADINGS, rows, words=(0, 1, 8))}")
        parts += _reasons(summary, load)
    blocks = (
        [f"{one['class']}, {one['treatment']}: {one['text']}." for one in _crossovers(summary)],
        [f"Expected: {one['text']}." for one in summary.get("expectations", ())],
        [*engine_lines(summary), *quality_lines(summary)],
        _notes(summary),
        [f"! {remark}" for remark in remarks(summary)],
    )
    parts += ["\n" + "\n".join(map(_wrapped, block)) for block in blocks if block]
    return "\n".join(parts)


def _title(run: Mapping[str, Any]) -> str:
    done = f"{run['requests_recorded']} of {run['requests_planned']}"
    state = "" if run["complete"] else f", INCOMPLETE ({done})"
    aa = ", A/A" if run["aa"] else ""
    return f"{run['experiment']}: {run['model']}, {run['provenance'].upper()}{aa}{state}"


def _row(cell: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The last field is, for example, `2.90 [2.70, 3.10] faster`."""
    compared = headline(summary, cell)
    speed_up = "baseline"
    if compared:
        found = f"{ratio_text(compared)} {verdict_text(compared)}"
        speed_up = verdict_text(compared) if compared["ratio"] is None else found
    return (
        cell["class"],
        cell["arm"],
        str(cell["n"]),
        str(cell["errors"]),
        number(cell[TTFT.name], 1000, 1),
        number(cell[TPOT.name], 1000, 2),
        number(cell[E2E.name], 1, 2),
        tokens_per_step(cell),
        speed_up,
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0, 1)) -> str:
    """Columns as wide as they need; where that is too wide, class and arm share what is left.

    Columns of `words` begin at the left, the others hold numbers and end at the right.
    """
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = WIDTH - sum(widths[2:]) - 2 * (len(widths) - 1)
    if widths[0] + widths[1] > room:
        widths[0] = min(widths[0], max(room // 2, room - widths[1]))
        widths[1] = min(widths[1], room - widths[0])
    lines = [_line(row, widths, words) for row in (headings, *rows)]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int], words: Sequence[int]) -> str:
    placed = []
    for index, (text, width) in enumerate(zip(row, widths, strict=True)):
        cut = text if len(text) <= width else text[: width - 1] + "…"
        placed.append(cut.ljust(width) if index in words else cut.rjust(width))
    return "  ".join(placed).rstrip()


def _reasons(summary: Mapping[str, Any], load: Load) -> list[str]:
    """What makes each treatment faster or slower under `load`, and what tokens cost; nothing where none is known."""
    costs = {(cell["arm"], Place.of(cell)): _usd(cell) for cell in summary["cells"]}
    numbers = ("tokens_per_step", "step_time_ratio", "predicted_speed_up", "measured_speed_up")
    rows = [
        (
            one["class"],
            one["treatment"],
            *(plain(one[name], ".2f") for name in numbers),
            *(costs[arm, Place.of(one)] for arm in (one["treatment"], one["baseline"])),
        )
        for one in summary["explanations"]
        if Place.of(one).load == load
    ]
    priced = any(set(row[-2:]) != {UNKNOWN} for row in rows)
    shown = slice(None, None if priced else -2)
    return [f"\n{_table(_REASONS[shown], [row[shown] for row in rows])}"] if rows else []


def _usd(cell: Mapping[str, Any]) -> str:
    return plain(cell["cost"] and cell["cost"]["usd_per_million_output_tokens"], ".2f")


def _crossovers(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = summary["run"]["crossover"]
    return [one for one in found if one["concurrency_from_which_plain_is_cheaper"] is not None]


def _notes(summary: Mapping[str, Any]) -> list[str]:
    run = summary["run"]
    notes = [
        f"{sentence(run)} Run {run['id']}, {run['started']} to {run['finished']}.",
        f"n: answered requests of {planned_text(run)} planned per cell, warm-up excluded; times are "
        f"medians, tok/step is over all steps; token counts from {run['token_source']}.",
        "Speed-up: ratio of geometric means over pairs of the same prompt, above 1 is better. "
        f"{run['interval']}; verdicts from {MIN_PROMPTS} prompts on, after Holm's correction; no difference: the interval lies inside "
        f"{EQUIVALENT[0]} to {EQUIVALENT[1]}.",
    ]
    if summary["explanations"]:
        notes.append(_WHY)
    if any(_usd(cell) != UNKNOWN for cell in summary["cells"]):
        notes.append("$/M: dollars per million output tokens, at the plan's prices per hour.")
    return notes


def _wrapped(text: str) -> str:
    """`text` broken at spaces into lines of at most WIDTH, continued with an indent."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(" " + word[: WIDTH - 1])
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word[:WIDTH]
    return "\n".join(lines)
