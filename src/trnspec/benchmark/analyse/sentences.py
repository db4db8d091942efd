"""The sentences of a run: the environment of their templates, and helpers that pages and tables share.

Jinja2 is imported when the first sentence is needed. A client that sends requests does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.analyse.result import Comparison, Verdict
from trnspec.benchmark.analyse.speed_up import EQUIVALENT
from trnspec.core.words import count, listed, span

_TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, **content: Any) -> str:
    return str(environment_of_sentences().get_template(f"{template}.jinja").render(**content))


def paragraph(template: str, **content: Any) -> str:
    """The text of a template as one paragraph."""
    return " ".join(rendered(template, **content).split())


@cache
def environment_of_sentences() -> Any:
    from trnspec.benchmark.jinja_environment import environment

    templates = environment(_TEMPLATES)
    filters: dict[str, Any] = templates.filters
    filters |= {"money": money, "count": count, "by_verdict": _by_verdict}
    filters |= {"place": CellKey.of, "percent": "{:.1%}".format, "load": attrgetter("in_words")}
    filters["listed"] = lambda names, most=None: listed(list(names), max_names=most)
    names: dict[str, Any] = templates.globals
    names |= {"interval": interval, "equivalent": EQUIVALENT, "span": partial(span, digits=2)}
    return templates


def _by_verdict(ones: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    """Comparisons in the order of their ratio, by their verdict."""
    ordered = sorted(ones, key=lambda one: one.ratio or 0)
    groups = {code: [one for one in ordered if one.verdict == code] for code in get_args(Verdict)}
    return [(code, own) for code, own in groups.items() if own]


def interval(low: float | None, high: float | None) -> str:
    """The interval after a ratio, as text; empty if unknown."""
    return "" if low is None or high is None else f" [{span(low, high, digits=2, to=', ')}]"


def money(usd: float) -> str:
    """Dollars with cents; below $0.10 with three significant digits."""
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.3g}"
