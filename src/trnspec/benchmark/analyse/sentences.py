"""The sentences of a run: the environment of their templates, helpers that pages and tables share, and the sentences about load.

Jinja2 is imported when the first sentence is needed. A client that sends requests does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trnspec.benchmark.analyse.requests import Place
from trnspec.benchmark.analyse.result import Comparison, Result
from trnspec.benchmark.analyse.speed_up import VERDICT_WORDS
from trnspec.core.words import count, listed

_TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, **content: Any) -> str:
    return str(environment_of_sentences().get_template(f"{template}.jinja").render(**content))


@cache
def environment_of_sentences() -> Any:
    from trnspec.benchmark.jinja_environment import environment

    templates = environment(_TEMPLATES)
    filters: dict[str, Any] = templates.filters
    filters |= {"money": money, "count": count, "by_verdict": _by_verdict}
    filters |= {"long": _long, "place": Place.of, "percent": "{:.1%}".format, "size": "{:g}".format}
    filters["listed"] = lambda names, most=None: listed(list(names), max_names=most)
    names: dict[str, Any] = templates.globals
    names |= {"here": " in this start of the servers", "interval": interval, "words": VERDICT_WORDS}
    return templates


def _by_verdict(ones: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    """Comparisons in the order of their ratio, by the words of their verdict."""
    ordered = sorted(ones, key=lambda one: one.ratio or 0)
    groups = {word: [one for one in ordered if one.verdict == code] for code, word in VERDICT_WORDS.items()}
    return [(word, own) for word, own in groups.items() if own]


def interval(low: float | None, high: float | None) -> str:
    """The interval after a ratio, as text; empty if unknown."""
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"


def money(usd: float) -> str:
    """Dollars with cents; below $0.10 with three significant digits."""
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.3g}"


def about_loads(result: Result) -> Iterator[str]:
    """The sentences about load: up to which load each treatment pays."""
    yield from (rendered("loads", row=row) for row in result.pays_up_to if row.class_ is None)


def _long(seconds: float) -> str:
    """A duration in words: hours, minutes or seconds."""
    for unit_s, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} seconds"
