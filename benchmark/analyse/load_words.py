"""The results of a run over load, in words: up to which load a treatment pays, and where tokens are cheapest.

All of it comes from `crossovers` and `search` of the summary (`benchmark.analyse.frontier`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmark.analyse.gains import IN_THIS_START
from benchmark.objectives import in_words as in_words_of
from benchmark.plan import Load
from core.words import count, listed, plural

FEW_ANSWERS = 3
"""A set of arrivals that is over after less time than so many answers take is a burst, not a load."""


def in_words(found: Mapping[str, Any]) -> str:
    """A crossover: `pays up to 11 requests at once [10, 12], within 5 % of 1 from 9 to 13`."""
    here = IN_THIS_START if found.get("one_start") else ""
    return "; ".join((f"{_pays(found)}{_near(found)}{here}", *_where_it_failed(found)))


def _near(found: Mapping[str, Any]) -> str:
    low, high = found.get("near_low"), found.get("near_high")
    if low is None or high is None:
        return ""
    begin, end = _shown(found, low), _shown(found, high)
    return f", within 5 % of 1 from {begin} to {end}" if begin != end else ""


def _where_it_failed(found: Mapping[str, Any]) -> Iterator[str]:
    for number, one in enumerate(found["failed"]):
        begin = f"at {_at(found, found['failing'])}, " * (number == 0)
        yield f"{begin}{one['failed']} of {one['asked']} requests of {one['arm']} failed ({', '.join(one['errors'])})"


def _pays(found: Mapping[str, Any]) -> str:
    more = "; it crosses again at a higher load" if found["more"] else ""
    if found["found"] == "not shown":
        return _unclear(found)
    if found["found"] == "while answered":
        return f"pays up to {_at(found, found['load'])}, the largest load that both arms answered"
    if found["found"] in ("always", "never"):
        (first, _), *others = found["signs"]
        verb = "pays" if found["found"] == "always" else "costs"
        of = "that both arms answered" if found["failing"] else "of the run"
        if not others:
            return f"{verb} at {_at(found, first)}, the only load {of}"
        return f"{verb} at every load {of}, {_shown(found, first)} to {_at(found, others[-1][0])}"
    low, high = (_shown(found, found[name]) for name in ("low", "high"))
    return f"pays {'from' if found['rising'] else 'up to'} {_at(found, found['load'])} [{low}, {high}]{more}"


def _unclear(found: Mapping[str, Any]) -> str:
    """What is known of a treatment without a crossover."""
    same = found.get("same", ())
    kinds = {
        "pays at {}": [load for load, sign in found["signs"] if sign == 1],
        "costs at {}": [load for load, sign in found["signs"] if sign == -1],
        "no difference that matters at {}": list(same),
        "no clear difference at {}": [load for load, sign in found["signs"] if not sign and load not in same],
    }
    known = []
    for text, loads in kinds.items():
        if loads:
            sizes = [*(_shown(found, load) for load in loads[:-1]), _at(found, loads[-1])]
            known.append(text.format(listed(sizes)))
    if not known:
        return "cannot be compared with its baseline at any load, because of too few answers"
    told = f"has {known[0]}" if known[0].startswith("no ") else known[0]
    if len(found["signs"]) == 1:
        return f"{told}, the only load with enough answers"
    if len(known) == 1:
        return told
    return f"has no clear crossover: {', '.join(known)}"


def headline(summary: Mapping[str, Any]) -> str:
    """The answer of a search: up to which load each treatment pays, and which arm serves cheapest. Empty of other runs, and
    where nothing may be recommended."""
    search, run = summary.get("search"), summary["run"]
    if search is None or run["aa"] or run.get("made_up_texts"):
        return ""
    over_mix = [one for one in summary["crossovers"] if one["class"] is None]
    pays = [f"{one['treatment']} {in_words(one)}." for one in over_mix]
    return " ".join([*pays, *_cheapest(summary)]) if pays else ""


def doubt(search: Mapping[str, Any] | None, load: Load) -> str:
    """Why one load of a search is not enough for advice; empty where it is enough."""
    if search is None:
        return ""
    size = load.size
    if size in search["late"]:
        return "because the client was late there"
    return "because it was measured once per class (repeat to confirm)" if size in search["once"] else ""


def sentences(summary: Mapping[str, Any], *, by_class: bool = True) -> Iterator[str]:
    """What the run says about load beside its headline, for people; nothing where it has one load."""
    found, told = summary.get("crossovers", ()), headline(summary)
    several = by_class and len({one["class"] for one in found}) > 2
    for one in (one for one in found if one["class"] is None):
        own = [other for other in found if other["class"] and other["treatment"] == one["treatment"]]
        parts = [f"{other['class']} {in_words(other)}" for other in own if several]
        if told and parts:
            yield f"{one['treatment']} by class: {'; '.join(parts)}."
        elif not told:
            over_mix = f"{one['treatment']} {in_words(one)}"
            yield f"Load: {'; '.join([over_mix, *parts])}."
    if (search := summary.get("search")) is None:
        yield from _objective(summary)
        return
    yield from () if told else _cheapest(summary)
    if search["budget_spent"] and search["starts"] > 1:
        yield (
            f"The search stopped at its budget ({search['budget']}) for {count(search['starts'], 'start')}: {count(search['cells_a_start'], 'cell')}, "
            "the same under each start."
        )
    elif search["budget_spent"]:
        yield f"The search stopped at its budget ({search['budget']}); run it again with a larger one to continue."
    if search["bursts_from"]:
        yield (
            f"From {search['bursts_from']:g} requests/s on, a set of requests arrives within the time of {FEW_ANSWERS} answers, "
            "so queues are shorter than under steady traffic: ask for more requests (--requests)."
        )


def _kept(row: Mapping[str, Any]) -> str:
    """How an arm stands to its objective, by the limit that it is furthest from: `96.9 % of 64 requests, surely 91.0 %`."""
    worst = min(row["limits"], key=lambda one: one["low"] - float(one["percentile"][1:]) / 100)
    if worst["share"] is None:
        return f"no {worst['metric'].removesuffix('_s').upper()} known"
    low, high = math.floor(worst["low"] * 1000) / 10, math.ceil(worst["high"] * 1000) / 10
    sure = f"at most {high:.1f} %" if worst["outcome"] == "missed" else f"at least {low:.1f} %"
    which = f" within {worst['limit']}" if len(row["limits"]) > 1 else ""
    return (
        f"{worst['share'] * 100:.1f} % of {count(worst['n'], 'request')}{which}, {sure} with 95 % confidence"
    )


def _nearness(row: Mapping[str, Any]) -> tuple[float, float]:
    """Of two that are equally sure, the one whose percentile is nearer to its limit is nearer."""
    worst = min(
        row["limits"], key=lambda one: (one["low"], -(one["percentile_s"] or math.inf) / one["limit_s"])
    )
    return worst["low"], -(worst["percentile_s"] or math.inf) / worst["limit_s"]


def _objective(summary: Mapping[str, Any]) -> Iterator[str]:
    """Which arms meet the objective at each listed load."""
    words = {"met": "met by", "missed": "missed by", "cannot tell": "not known of"}
    by_load: dict[Load, dict[str, list[str]]] = {}
    for row in summary.get("objectives", ()):
        load = Load(concurrency=row["concurrency"], rate_per_s=row["rate_per_s"])
        told = by_load.setdefault(load, {}).setdefault(row["outcome"], [])
        told.append(f"{row['arm']} ({_kept(row)})")
    for load, by_outcome in by_load.items():
        parts = [f"{text} {listed(by_outcome[key])}" for key, text in words.items() if key in by_outcome]
        yield f"{in_words_of(summary['run']['objective'])} at {load.in_words}: {'; '.join(parts)}."


def _cheapest(summary: Mapping[str, Any]) -> Iterator[str]:
    search, rows = summary["search"], summary.get("objectives", ())
    objective = in_words_of(search["objective"])
    within = f"that meets {objective}" if objective else "without an objective"
    able = [arm for arm in search["arms"] if arm["cheapest"]]
    if not any(arm["points"] for arm in search["arms"]):
        yield "No arm answered enough requests at any load: time per token and price are not known."
        return
    if objective and not able:
        closest = max(rows, key=_nearness)
        at = _at(search, closest["rate_per_s"] or closest["concurrency"])
        surely = "surely " * any(row["outcome"] == "cannot tell" for row in rows)
        slowest = (
            f"{one['percentile']} {one['percentile_s']:.3g} s"
            for one in closest["limits"]
            if one["percentile_s"]
        )
        known = f"{_kept(closest)} ({', '.join(slowest)})"
        yield f"No arm {surely}meets {objective} at any load of the run; closest is {closest['arm']} at {at}: {known}."
    if not able:
        return
    priced = all(arm["cheapest"]["usd_per_million_output_tokens"] for arm in able)
    key, sign = ("usd_per_million_output_tokens", 1) if priced else ("output_tokens_per_s", -1)
    ordered = sorted(able, key=lambda arm: sign * arm["cheapest"][key][0])
    told = []
    for arm in ordered:
        value, *ends = (
            f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in arm["cheapest"][key] if n is not None
        )
        known = f"[{', '.join(ends)}]" if ends else "(interval not known)"
        worth = f"${value} {known} per million output tokens" if priced else f"{value} {known} tokens/s"
        told.append(f"{arm['arm']} at {_at(search, arm['cheapest']['load'])}, {worth}")
    (_, low, high), *others = (arm["cheapest"][key] for arm in ordered)
    close = "; no clear difference between the first two" * any(
        None in (low, begin) or (begin <= high and low <= end) for _, begin, end in others[:1]
    )
    unable = [arm["arm"] for arm in search["arms"] if not arm["cheapest"]]
    open_ = {row["arm"] for row in rows if row["outcome"] == "cannot tell"}
    words = {
        "missed by": [name for name in unable if objective and name not in open_],
        "not known of": [name for name in unable if objective and name in open_],
        "too few answers of": [] if objective else unable,
    }
    rest = "".join(f"; {why} {listed(names)} at any load of the run" for why, names in words.items() if names)
    yield f"{'Cheapest' if priced else 'Most output tokens'} {within}: {'; then '.join(told)}{close}{rest}."


def _at(found: Mapping[str, Any], load: float) -> str:
    shown = _shown(found, load)
    if found["by"] == "rate":
        return f"{shown} requests/s"
    return f"{shown} {plural(float(shown), 'request')} at once"


def _shown(found: Mapping[str, Any], load: float) -> str:
    """The largest number of requests that is not above `load`; rates to three digits."""
    return f"{load:.3g}" if found["by"] == "rate" else f"{math.floor(load + 1e-9)}"
