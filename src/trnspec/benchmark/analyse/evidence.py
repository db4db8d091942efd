"""The evidence of a run: named checks between the table of requests and the verdicts.

A figure becomes a verdict only where no check withholds it. Each check is a small function over the cells of a run; it says what it found for
an arm or a class, with its numbers and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable

from trnspec.benchmark.analyse.result import Evidence


def withheld_for(evidence: Iterable[Evidence], arm: str, class_: str | None = None) -> list[Evidence]:
    """The rows that withhold every verdict about an arm in a class; for None those about the arm in all classes, the mix among them. A
    comparison is withheld if there is a row for its baseline or for its treatment."""
    return [
        one
        for one in evidence
        if one.outcome == "withheld" and one.arm in (None, arm) and one.class_ in (None, class_)
    ]
