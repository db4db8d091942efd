"""Refusals: the sentences of `refusals.yaml`, filled in. The table is read when something is refused."""

from __future__ import annotations

from functools import cache
from typing import Any

from trnspec.core.findings import Finding
from trnspec.experiment.catalogue.models import table_of


@cache
def _sentences() -> dict[str, dict[str, str]]:
    return dict(table_of(__file__))


def refused(name: str, value: Any, /, *, at: str | None = None, **words: Any) -> Finding:
    """Return the refusal of that name; `at` is the key of the file if the name does not begin with it."""
    text = _sentences()[name]
    where = name.partition(" ")[0] if at is None else at
    return Finding(where, value, text["why"].format(**words), text["remedy"].format(**words))
