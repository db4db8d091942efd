"""The answer as plain text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS
from benchmark.metrics import COMPARED, E2E, TOKENS_PER_STEP, TPOT, TTFT

WIDTH = 100
_HEADINGS = ("class", "arm", "n", "err", "TTFT ms", "TPOT ms", "E2E s", "tok/step", "speed-up (TPOT)")
_LEFT = (0, 1, 8)
"""Columns of text; the others hold numbers and stand to the right."""


def render(summary: Mapping[str, Any]) -> str:
    """Table, then what its numbers are and what to beware of."""
    run = summary["run"]
    parts = [_title(run)]
    for concurrency in dict.fromkeys(cell["concurrency"] for cell in summary["cells"]):
        cells = [cell for cell in summary["cells"] if cell["concurrency"] == concurrency]
        rows = [_row(cell, summary["comparisons"]) for cell in cells]
        parts.append(f"\n{concurrency} at a time\n{_table(rows)}")
    parts.append("\n" + "\n".join(_wrapped(line) for line in (*_notes(run), *_cautions(summary))))
    return "\n".join(parts)


def _title(run: Mapping[str, Any]) -> str:
    done = f"{run['requests_recorded']} of {run['requests_planned']}"
    state = "" if run["complete"] else f", INCOMPLETE ({done})"
    return _wrapped(f"{run['experiment']}: {run['model']}, {run['provenance'].upper()}{state}")


def _row(cell: Mapping[str, Any], comparisons: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return (
        cell["class"],
        cell["arm"],
        str(cell["n"]),
        str(cell["errors"]),
        _number(cell[TTFT.name], 1000, 1),
        _number(cell[TPOT.name], 1000, 2),
        _number(cell[E2E.name], 1, 2),
        _number(cell[TOKENS_PER_STEP.name], 1, 2, statistic="mean"),
        _speed_up(cell, comparisons),
    )


def _number(values: Mapping[str, float] | None, scale: float, digits: int, statistic: str = "p50") -> str:
    return "-" if values is None else f"{values[statistic] * scale:.{digits}f}"


def _speed_up(cell: Mapping[str, Any], comparisons: Sequence[Mapping[str, Any]]) -> str:
    for found in comparisons:
        place = (found["treatment"], found["class"], found["concurrency"], found["metric"])
        if place == (cell["arm"], cell["class"], cell["concurrency"], COMPARED[0].name):
            return speed_up_text(found)
    return "baseline"


def speed_up_text(comparison: Mapping[str, Any]) -> str:
    """Ratio, interval and verdict of one comparison, for example `2.90 [2.70, 3.10] faster`."""
    if comparison["ratio"] is None:
        return str(comparison["verdict"])
    interval = ""
    if comparison["ci_low"] is not None:
        interval = f" [{comparison['ci_low']:.2f}, {comparison['ci_high']:.2f}]"
    return f"{comparison['ratio']:.2f}{interval} {comparison['verdict']}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as they need; where that is too wide, class and arm share what is left."""
    columns = list(zip(_HEADINGS, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = WIDTH - sum(widths[2:]) - 2 * (len(widths) - 1)
    if widths[0] + widths[1] > room:
        widths[0] = min(widths[0], max(room // 2, room - widths[1]))
        widths[1] = min(widths[1], room - widths[0])
    lines = [_line(row, widths) for row in (_HEADINGS, *rows)]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    placed = []
    for index, (text, width) in enumerate(zip(row, widths, strict=True)):
        cut = text if len(text) <= width else text[: width - 1] + "…"
        placed.append(cut.ljust(width) if index in _LEFT else cut.rjust(width))
    return "  ".join(placed).rstrip()


def _notes(run: Mapping[str, Any]) -> list[str]:
    origin = {
        "measured": "Measured against live endpoints",
        "emulated": "EMULATED: an endpoint says that its timings come from a model, not from an engine",
    }[run["provenance"]]
    return [
        f"{origin}; run {run['id']}, {run['started']} to {run['finished']}.",
        f"n: answered requests of {run['requests_per_cell']} planned per cell, warm-up excluded; times are "
        f"medians, tok/step a mean; token counts from {run['token_source']}.",
        "Speed-up: ratio of geometric means over pairs of the same prompt, above 1 is better. "
        f"{run['interval']}; verdicts from {MIN_PROMPTS} prompts on; equivalent: the interval lies inside "
        f"{EQUIVALENT[0]} to {EQUIVALENT[1]}.",
    ]


def _cautions(summary: Mapping[str, Any]) -> Iterator[str]:
    for cell in summary["cells"]:
        for caution in _cell_cautions(cell):
            yield f"! {cell['class']}, {cell['arm']}, {cell['concurrency']} at a time: {caution}"
    for found in summary["comparisons"]:
        if found["warning"] and found["metric"] == COMPARED[0].name:
            yield f"! {found['class']}, {found['concurrency']} at a time: {found['warning']}"


def _cell_cautions(cell: Mapping[str, Any]) -> Iterator[str]:
    if cell["error_names"]:
        yield "failed: " + ", ".join(f"{name} {count}" for name, count in cell["error_names"].items())
    equality = cell["output_equality"]
    if equality and equality["equal"] < equality["n_pairs"]:
        share = f"{equality['equal']} of {equality['n_pairs']} pairs"
        yield f"same text as {equality['baseline']} in {share} only"
    if merged := cell["acceptance"]["steps_above_ceiling"]:
        yield f"{merged} chunks hold more tokens than a step can yield; steps were merged on their way"
    if cell["cached_tokens"]:
        yield f"{cell['cached_tokens']} prompt tokens came from the server's prefix cache"


def _wrapped(text: str) -> str:
    """`text` broken at spaces into lines of at most WIDTH, continued with an indent."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(" " + word[: WIDTH - 1])
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word[:WIDTH]
    return "\n".join(lines)
