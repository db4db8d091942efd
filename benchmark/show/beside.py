"""What lies beside the records, in words: how the compiled engines differ, and whether their answers are as right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmark.show.view import Table
from benchmark.show.wording import UNKNOWN

_LONGEST = 60
"""Characters of a value; what is longer is cut."""
_SHOWN = 4
"""Differences that a line names; the page has all."""


def engine_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """One line a treatment: what its compiled configuration has different from the baseline's, or that nobody knows;
    and one for each difference that was declared with it."""
    run = summary["run"]
    for arm in run["arms"]:
        name = arm["name"]
        if name != run["baseline"]:
            known = summary.get("engines", {}).get(name)
            yield f"Engine of {name} against {run['baseline']}: {_engine(name, known)}"
            for text in arm.get("also_changes", ()):
                yield f"Engine of {name}, declared beside speculation: {text}."


def _engine(arm: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"not compared, engines/{arm}.json is not beside the records."
    if not found["compared"]:
        return "not compared, the baseline's compiled configuration was not there."
    beyond = found["undeclared"]
    if not beyond:
        return f"equal but for the {found['declared']} values that speculation sets."
    named = "; ".join(
        f"{one['path']} {_value(one['baseline'])} -> {_value(one['this'])}" for one in beyond[:_SHOWN]
    )
    rest = f"; and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    return f"apart from the {found['declared']} values that speculation sets, these differ: {named}{rest}."


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
    """One line for each treatment and way of reading answers; what the questions were; or that nobody asked."""
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
        f"{difference:+.1f} points [{low:+.1f}, {high:+.1f}] over {one['n']} questions, "
        f"{one['gained']} gained, {one['lost']} lost (McNemar p = {one['p_value']:.3f}): {verdict}."
    )


def quality_table(summary: Mapping[str, Any]) -> Table | None:
    """The share of right answers of every arm; None where nobody was asked."""
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
