"""From a run's decision to routes: which arm serves which class, up to how many requests at once, and the figure that each route rests on.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark.analyse.decision import is_withheld
from core.findings import Refusal
from core.words import listed

DEFAULT = "*"
_DEARER = 1.05
"""An arm whose tokens cost this many times the baseline's is dearer; less is within what repeats."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run says of one arm for one class at one load."""

    class_: str
    arm: str
    at_once: int | None
    """Requests in flight; None where they arrived at a rate."""
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    usd_ratio: float | None
    """Dollars per token over the baseline's."""

    @property
    def problem(self) -> str:
        """Why a route should not rest on it; empty where it may."""
        if self.verdict == "slower":
            return "slower"
        if self.verdict != "faster":
            return f"not shown to be faster ({self.verdict})"
        return "dearer" if self.usd_ratio is not None and self.usd_ratio > _DEARER else ""

    def __str__(self) -> str:
        where = "" if self.at_once is None else f" at {self.at_once} at once"
        if self.ratio is None:
            return f"no figure{where}"
        interval = (
            f" [{self.low:.2f}, {self.high:.2f}]" if self.low is not None and self.high is not None else ""
        )
        return f"{self.ratio:.2f}{interval} times as fast{where}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Routes with their reasons."""

    run: str
    """Its id, with a word behind it where it was not measured."""
    baseline: str
    routes: Mapping[str, str]
    most_at_once: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each route, by class."""
    against: Mapping[str, str] = field(default_factory=dict)
    """Routes against the evidence, by class, each with what speaks against it."""


def evidence_of(summary: Mapping[str, Any]) -> dict[tuple[str, str], list[Evidence]]:
    """What is known by class and arm, the smallest load first. Of a run with a baseline for each batch, arms of the first batch: the ratios
    of others are to an arm that would not be served.

    Raises `Refusal` for a run that has no verdicts, as of arms at one address.
    """
    if "decision" not in summary:
        raise Refusal(
            f"run {summary['run']['id']}: its summary has no decision; make it again with ./trnspec benchmark report"
        )
    if is_withheld(summary):
        raise Refusal(
            f"run {summary['run']['id']}: its answers make no sense, so it has no verdict; look at its report"
        )
    known: dict[tuple[str, str], list[Evidence]] = {}
    baseline = summary["run"]["baseline"]
    for at in sorted(summary["decision"]["loads"], key=_load):
        for gain in at["by_window"]:
            if gain.get("baseline", baseline) != baseline:
                continue
            usd = gain["usd_before"], gain["usd_after"]
            known.setdefault((gain["class"], gain["arm"]), []).append(
                Evidence(
                    class_=gain["class"],
                    arm=gain["arm"],
                    at_once=at["load"]["concurrency"],
                    verdict=gain["verdict"],
                    ratio=gain["ratio"],
                    low=gain["low"],
                    high=gain["high"],
                    usd_ratio=usd[1] / usd[0] if usd[0] and usd[1] else None,
                )
            )
    if not known:
        raise Refusal(
            f"run {summary['run']['id']}: compares no arms, so it supports no route; promote an arm by its name"
        )
    return known


def _load(at: Mapping[str, Any]) -> float:
    return float(at["load"]["concurrency"] or at["load"].get("rate_per_s") or 0)


def proposed(summary: Mapping[str, Any]) -> Policy:
    """The policy that a run supports: the fastest arm that pays for a class, from the smallest load on and as far as it was seen to; the
    baseline for everything else."""
    known, baseline = evidence_of(summary), str(summary["run"]["baseline"])
    classes = list(dict.fromkeys(class_ for class_, _ in known))
    chosen: dict[str, list[Evidence]] = {}
    for class_ in classes:
        able = [paying for (name, _), rows in known.items() if name == class_ and (paying := _paying(rows))]
        if able:
            chosen[class_] = max(able, key=lambda rows: (len(rows), rows[-1].ratio or 0.0))
    run = str(summary["run"]["id"]) + ("" if summary["run"]["provenance"] == "measured" else " (EMULATED)")
    arms = {rows[0].arm for rows in chosen.values()}
    everywhere = all(len(rows) == len(known[class_, rows[0].arm]) for class_, rows in chosen.items())
    if len(chosen) == len(classes) and len(arms) == 1 and everywhere:
        worst = min((rows[-1] for rows in chosen.values()), key=lambda row: row.ratio or 0.0)
        reason = f"every class is faster at every measured load, the least {worst.class_}: {worst}"
        return Policy(run=run, baseline=baseline, routes={DEFAULT: arms.pop()}, reasons={DEFAULT: reason})
    routes = {class_: rows[0].arm for class_, rows in chosen.items()}
    reasons = {class_: str(rows[-1]) for class_, rows in chosen.items()}
    rest = [class_ for class_ in classes if class_ not in routes]
    reasons[DEFAULT] = (
        f"the baseline; no arm pays for {listed(rest)}" if rest else "the baseline, above the limits"
    )
    return Policy(
        run=run,
        baseline=baseline,
        routes={**routes, DEFAULT: baseline},
        most_at_once=dict(_limits(summary, chosen.values())),
        reasons=reasons,
    )


def _paying(rows: Sequence[Evidence]) -> list[Evidence]:
    """The loads from the smallest on at which an arm pays; of rates all or none, since no limit of requests in flight follows from them."""
    end = next((place for place, row in enumerate(rows) if row.problem), len(rows))
    return [] if end < len(rows) and rows[end].at_once is None else list(rows[:end])


def _limits(summary: Mapping[str, Any], chosen: Any) -> Iterator[tuple[str, int]]:
    """The largest load at which an arm was seen to pay for all of its classes; of a search also the lower end of its crossover. The
    gateway divides it by two, so it is 2 at least."""
    last: dict[str, list[float]] = {}
    for rows in chosen:
        if rows[-1].at_once is not None:
            last.setdefault(rows[-1].arm, []).append(rows[-1].at_once)
    for edge in summary["crossovers"]:
        crossing = edge["found"] == "crossing" and edge["class"] is None and edge["by"] == "concurrency"
        if crossing and edge["treatment"] in last and edge["low"] is not None:
            last[edge["treatment"]].append(edge["low"])
    for arm, loads in last.items():
        yield arm, max(2, math.floor(min(loads)))


def with_routes(
    policy: Policy, summary: Mapping[str, Any], routes: Mapping[str, str], most_at_once: Mapping[str, int]
) -> Policy:
    """The policy with the routes and limits that somebody asked for, and what speaks against each: an arm that is slower, dearer or not
    shown to be faster, or more at once than was seen to pay."""
    known = evidence_of(summary)
    merged = {**policy.routes, **routes}
    default = merged[DEFAULT]
    kept = {class_: arm for class_, arm in merged.items() if class_ == DEFAULT or arm != default}
    against, reasons = dict[str, str](), {class_: policy.reasons.get(class_, "") for class_ in kept}
    for class_, arm in routes.items():
        rest = dict.fromkeys(name for name, _ in known if name not in kept)
        rows = {name: known.get((name, arm), []) for name in ([class_] if class_ != DEFAULT else rest)}
        if class_ != DEFAULT and arm != default:  # a limit keeps it from the loads above
            rows = {name: row if row and row[0].at_once is None else row[:1] for name, row in rows.items()}
        reasons[class_] = "; ".join(f"{name} {row[0]}" for name, row in rows.items() if row)
        if arm != policy.baseline and (objections := list(_objections(rows))):
            against[class_] = "; ".join(objections)
    routed = [_paying(known.get((class_, arm), [])) for class_, arm in kept.items() if arm != default]
    seen = dict(_limits(summary, [rows for rows in routed if rows]))
    for arm, most in most_at_once.items():
        if most > seen.get(arm, 0):
            against[arm] = (
                f"was seen to pay up to {seen[arm]} at once" if arm in seen else "was not seen to pay"
            )
    limits = {**seen, **most_at_once}
    return Policy(
        run=policy.run,
        baseline=policy.baseline,
        routes=kept,
        most_at_once={arm: most for arm, most in limits.items() if arm in {*kept.values()} - {default}},
        reasons={class_: reason for class_, reason in reasons.items() if class_ in kept},
        against=against,
    )


def break_evens(policy: Policy, summary: Mapping[str, Any]) -> dict[str, float]:
    """Tokens of a step below which drafting does not pay, for each drafting arm that serves: the mean over its classes at the largest load
    within its limit. It is the time of a drafted step over a plain one, which grows with the load."""
    drafting = {arm["name"] for arm in summary["run"]["arms"] if arm["speculative_tokens"]}
    found = {}
    for arm in dict.fromkeys(policy.routes.values()):
        most = policy.most_at_once.get(arm, math.inf)
        rows = [
            row
            for row in summary["explanations"]
            if row["treatment"] == arm
            and row["break_even_tokens_per_step"]
            and policy.routes.get(row["class"], policy.routes[DEFAULT]) == arm
            and (row["concurrency"] or 0) <= most
        ]
        if arm in drafting and rows:
            load = max(row["concurrency"] or 0 for row in rows)
            own = [row["break_even_tokens_per_step"] for row in rows if (row["concurrency"] or 0) == load]
            found[arm] = round(math.fsum(own) / len(own), 2)
    return found


def _objections(rows: Mapping[str, Sequence[Evidence]]) -> Iterator[str]:
    for class_, known in rows.items():
        if not known:
            yield f"{class_} was not measured"
        elif (speaks := next((row for row in known if row.problem), None)) is not None:
            yield f"{class_} is {speaks.problem}, {speaks}"
