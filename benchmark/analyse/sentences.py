"""The sentences of a run: the environment of their templates, helpers that pages and tables share, and the sentences about load.

Jinja2 is imported when the first sentence is needed. A client that sends requests does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import VERDICT_WORDS
from benchmark.objectives import in_words as in_words_of
from core.words import count, listed, plural

BURST_ANSWERS = 3
"""A set of arrivals that ends within the time of this number of answers is a burst, not a load."""
_TEMPLATES = Path(__file__).parent / "templates"
SummaryRow = Mapping[str, Any]


def rendered(template: str, **content: Any) -> str:
    return str(environment_of_sentences().get_template(f"{template}.jinja").render(**content))


@cache
def environment_of_sentences() -> Any:
    from benchmark.jinja_environment import environment

    templates = environment(_TEMPLATES)
    templates.filters |= {"money": money, "count": count, "by_verdict": _by_verdict}
    templates.filters |= {"long": _long, "place": Place.of, "percent": "{:.1%}".format}
    templates.filters["listed"] = lambda names, most=None: listed(list(names), max_names=most)
    # The limit of an objective that an arm is furthest from.
    templates.filters["furthest"] = lambda row: min(
        row["limits"], key=lambda of: of["low"] - float(of["percentile"][1:]) / 100
    )
    templates.globals |= {
        "here": " in this start of the servers",
        "interval": interval,
        "at": _at,
        "size": _size,
    }
    return templates


def _by_verdict(gains: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Gains in the order of their ratio, by verdict in the order of the codes."""
    ordered = sorted(gains, key=lambda gain: gain.ratio or 0)
    groups = {word: [gain for gain in ordered if gain.verdict == word] for word in VERDICT_WORDS.values()}
    return [(word, own) for word, own in groups.items() if own]


def interval(low: float | None, high: float | None) -> str:
    """The interval after a ratio, as text; empty if unknown."""
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"


def money(usd: float) -> str:
    """Dollars with cents; below $0.10 with three significant digits."""
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.3g}"


def in_words(crossover: SummaryRow) -> str:
    """A crossover: `pays up to 11 requests at once [10, 12], within 5 % of 1 from 9 to 13`."""
    return rendered("loads", kind="crossover", c=crossover)


def headline(summary: SummaryRow) -> str:
    """The result of a search: up to which load each treatment pays, and which arm has the lowest cost. Empty for other runs, and if
    nothing may be recommended."""
    run = summary["run"]
    if summary.get("search") is None or run["aa"]:
        return ""
    pays = [f"{row['treatment']} {in_words(row)}." for row in summary["crossovers"] if row["class"] is None]
    return " ".join([*pays, *_cheapest(summary)]) if pays else ""


def sentences(summary: SummaryRow, *, by_class: bool = True) -> Iterator[str]:
    """The sentences about load, without the headline; none if the run has one load."""
    crossovers, search, head = summary.get("crossovers", ()), summary.get("search"), headline(summary)
    several = by_class and len({row["class"] for row in crossovers}) > 2
    for row in (row for row in crossovers if row["class"] is None):
        name, parts = row["treatment"], []
        if several:
            own = (other for other in crossovers if other["class"] and other["treatment"] == name)
            parts = [f"{other['class']} {in_words(other)}" for other in own]
        if not head:
            yield f"Load: {'; '.join([f'{name} {in_words(row)}', *parts])}."
        elif parts:
            yield f"{name} by class: {'; '.join(parts)}."
    if search is None:
        yield from _objective(summary)
        return
    if not head:
        yield from _cheapest(summary)
    if search["budget_spent"]:
        yield rendered("loads", kind="budget", search=search)
    if search["bursts_from"]:
        yield rendered("loads", kind="bursts", rate=search["bursts_from"], answers=BURST_ANSWERS)


def _objective(summary: SummaryRow) -> Iterator[str]:
    """Which arms meet the objective at each listed load."""
    by_load: dict[str, list[SummaryRow]] = {}
    for row in summary.get("objectives", ()):
        by_load.setdefault(Place.of(row).load.in_words, []).append(row)
    words = {"met": "met by", "missed": "missed by", "cannot tell": "not known of"}
    for load, rows in by_load.items():
        groups = [(text, [row for row in rows if row["outcome"] == code]) for code, text in words.items()]
        known = {"objective": in_words_of(summary["run"]["objective"]), "load": load}
        yield rendered("loads", kind="objective", groups=[group for group in groups if group[1]], **known)


def _cheapest(summary: SummaryRow) -> Iterator[str]:
    """The load at which each arm of a search has the lowest cost, within the objective if there is one."""
    search, rows = summary["search"], summary.get("objectives", ())
    known = {"objective": in_words_of(search["objective"]), "by": search["by"]}
    able = [arm for arm in search["arms"] if arm["cheapest"]]
    cannot_tell = {row["arm"] for row in rows if row["outcome"] == "cannot tell"}
    if not any(arm["points"] for arm in search["arms"]):
        yield "No arm answered enough requests at any load: time per token and price are not known."
        return
    if known["objective"] and not able:
        # Of two arms that are equally sure, the one whose percentile is nearer to its limit is closer.
        closest = max(
            rows,
            key=lambda row: min(
                (of["low"], -(of["percentile_s"] or math.inf) / of["limit_s"]) for of in row["limits"]
            ),
        )
        yield rendered("loads", kind="none meets", row=closest, surely=bool(cannot_tell), **known)
    if not able:
        return
    priced = all(arm["cheapest"]["usd_per_million_output_tokens"] for arm in able)
    key, sign = ("usd_per_million_output_tokens", 1) if priced else ("output_tokens_per_s", -1)
    ordered = sorted(able, key=lambda arm: sign * arm["cheapest"][key][0])
    numbers = [arm["cheapest"][key] for arm in ordered]
    (_, low, high), *others = numbers
    alike = any(None in (low, start) or (start <= high and low <= end) for _, start, end in others[:1])
    unable = [arm["arm"] for arm in search["arms"] if not arm["cheapest"]]
    missed = [name for name in unable if name not in cannot_tell]
    names = [("missed by", missed), ("not known of", [name for name in unable if name in cannot_tell])]
    yield rendered(
        "loads",
        kind="cheapest",
        priced=priced,
        arms=[
            (
                arm["arm"],
                arm["cheapest"]["load"],
                [f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in own if n is not None],
            )
            for arm, own in zip(ordered, numbers, strict=True)
        ],
        alike=alike,
        unable=names if known["objective"] else [("too few answers of", unable)],
        **known,
    )


def _long(seconds: float) -> str:
    """A duration in words: hours, minutes or seconds."""
    for unit_s, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _at(by: str, load: float) -> str:
    size = _size(by, load)
    return f"{size} requests/s" if by == "rate" else f"{size} {plural(float(size), 'request')} at once"


def _size(by: str, load: float) -> str:
    """The largest number of requests that is not above `load`; rates to three digits."""
    return f"{load:.3g}" if by == "rate" else f"{math.floor(load + 1e-9)}"
