"""Problems of an existing cluster or VPC: the sentences of `existing_problems.yaml`, filled in. The table is read when it is needed."""

from __future__ import annotations

from functools import cache

from core.findings import Finding, finding
from experiment.catalogue.models import table_of

Problem = tuple[str, str]
"""Reason and remedy."""


@cache
def _sentences() -> dict[str, dict[str, str]]:
    return dict(table_of(__file__))


def problem(name: str, /, **words: object) -> Problem:
    text = _sentences()[name]
    return text["why"].format(**words), text["remedy"].format(**words)


def problem_finding(name: str, /, **words: object) -> Finding:
    """Return the finding of that name."""
    return finding(*problem(name, **words))
