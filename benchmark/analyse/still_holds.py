"""Check whether the routes of a run still hold, with a smaller run of the same prompts.

First the earlier run is reduced to the prompts and the load of the smaller one, so that both have the same requests. For each class that a
drafting arm serves, the speed-up is the mean log ratio over prompts with its interval (`benchmark/analyse/stats.py`), and the change is the
mean difference of the two speed-ups, prompt by prompt. The intervals of all classes hold together (Bonferroni). A route no longer holds if

- the whole interval of the new speed-up is below 0.91, or
- the whole interval of the change is below 0.83, and the interval of the new speed-up reaches 1: it is clearly smaller, and no gain is visible.

A speed-up is of one start of the servers, which alone can change it to 0.91; a change is between two starts, 0.91 times 0.91. A smaller
gain is still a gain, and a wide interval shows nothing: neither is a finding. Of unchanged services at most 5 in 100 may be called
changed (tests/benchmark/analyse/test_still_holds.py simulates them). Real requests beside the check make an arm slower: where
the drafting arm had more of them than its baseline, a loss may be theirs, and nothing can be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmark.analyse.cells import Cells, Place, cells_of
from benchmark.analyse.comparison import MIN_PROMPTS, STARTS_DIFFER, as_ratio, log_ratios
from benchmark.analyse.stats import Source, mean, of_sample
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.metrics import COMPARED
from benchmark.plan import MIXED, Load, Plan, from_dict

PROMPTS = 8
"""The number of prompts per class."""
_CELL_MINUTES = 10
"""The maximum minutes of loading per class, all arms together."""


@dataclass(frozen=True, kw_only=True)
class CheckedRoute:
    """The result of the smaller run for a class. The speed-ups are rows with ratio, ci_low and ci_high."""

    class_: str
    arm: str
    baseline: str
    state: Literal["holds", "broken", "untold"]
    why: str
    before: Mapping[str, Any]
    now: Mapping[str, Any]

    def __str__(self) -> str:
        before, now = map(_in_words, (self.before, self.now))
        return (
            f"{self.class_}: {self.arm} was {before} times as fast as {self.baseline}, now {now}: {self.why}"
        )


def _in_words(row: Mapping[str, Any]) -> str:
    known = row["ci_low"] is not None
    return "{ratio:.2f} [{ci_low:.2f}, {ci_high:.2f}]".format(**row) if known else "an unknown number of"


def smaller_plan(raw: RawRun, routes: Mapping[str, str], *, at_once: int) -> tuple[Plan, Load]:
    """The plan of a run, cut to a few prompts of the classes of these routes, their arms and baselines, and the smallest load; and the load
    of the run that it is compared with, another one where the run measured none as small. A class with too few answers is not in it.

    Raises ResultsError for a replay, which has no load of its own, and where nothing is left.
    """
    plan, loads = raw.plan, sorted({one.load for one in raw.measured}, key=lambda load: load.size)
    if plan.replayed or not loads:
        raise ResultsError(f"run {raw.sessions[0].run}: has no load that a smaller run could be compared at")
    load = next((load for load in loads if load.concurrency), loads[0])
    names = [arm.name for arm in plan.arms if arm.name in {*routes.values(), *baselines(plan, routes)}]
    answered = {(one.arm, one.prompt_id) for one in raw.measured if one.load == load and one.error is None}
    chosen = set[str]()
    for class_ in routes:
        ids = [one.id for one in plan.prompts if one.class_ == class_]
        able = [id_ for id_ in ids if all((name, id_) in answered for name in names)]
        count = min(PROMPTS, len(able)) if len(able) >= MIN_PROMPTS else 0
        chosen |= {able[index * len(able) // count] for index in range(count)}
    if not chosen:
        raise ResultsError(
            f"run {raw.sessions[0].run}: no class has {MIN_PROMPTS} prompts that {' and '.join(names)} answered"
        )
    changes = {
        "prompts": tuple(one for one in plan.prompts if one.id in chosen),
        "concurrency": (min(at_once, load.concurrency or at_once),),
        "cell_minutes": min(plan.cell_minutes or _CELL_MINUTES, _CELL_MINUTES),
        "mixed": MIXED in plan.loaded_with,
        "requests": PROMPTS,
        **{"rate": (), "search": None, "objective": None, "duration_s": None},
        **{"warmup": 0, "rounds": 1, "starts": 1},
    }
    return from_dict(plan.with_arms(names).model_copy(update=changes).to_dict()), load


def baselines(plan: Plan, routes: Mapping[str, str]) -> set[str]:
    """The baselines of the arms of these routes."""
    return {plan.baselines[arm] for arm in routes.values()}


def cut(raw: RawRun, plan: Plan, load: Load) -> RawRun:
    """What a run measured at `load` of the prompts and arms of a smaller plan, as if it had been at that plan's load."""
    prompts, at = {prompt.id for prompt in plan.prompts}, plan.concurrency[0]
    requests = (one for one in raw.requests if one.load == load and one.prompt_id in prompts)
    blocks = (one for one in raw.blocks if one.load == load)
    return replace(
        raw.with_plan(plan),
        requests=tuple(replace(one, concurrency=at, rate_per_s=None) for one in requests),
        blocks=tuple(replace(one, concurrency=at, rate_per_s=None) for one in blocks),
    )


def checked(
    old: RawRun, new: RawRun, routes: Mapping[str, str], *, traffic: Mapping[str, int]
) -> list[CheckedRoute]:
    """What `new` says of each class; `old` is cut to the same plan. `traffic`: the most real requests that an arm had beside the check,
    as far as they are known."""
    runs, able = (cells_of(old), cells_of(new)), {name: routes[name] for name in new.plan.classes}
    return [_route(runs, name, arm, together=len(able), traffic=traffic) for name, arm in able.items()]


def _route(
    runs: tuple[Cells, Cells], class_: str, name: str, *, together: int, traffic: Mapping[str, int]
) -> CheckedRoute:
    plan = runs[1].plan
    arm, place = plan.arm(name), Place(class_, plan.loads[0])
    base, samples, means = runs[1].baseline_of(arm), [], []
    for cells in runs:
        sample, by_prompt = log_ratios(cells, (base, arm), place)[COMPARED[0].name], dict[str, list[float]]()
        for source, log in sample:
            by_prompt.setdefault(source.prompt, []).append(log)
        samples.append(sample)
        means.append({prompt: mean(logs) for prompt, logs in by_prompt.items()})
    shared = means[0].keys() & means[1].keys()
    samples.append(
        [(Source(class_, prompt), means[1][prompt] - means[0][prompt]) for prompt in sorted(shared)]
    )
    before, now, change = (
        as_ratio(replace(of_sample(sample), together=together) if sample else None) for sample in samples
    )
    found: dict[str, Any] = {
        "class_": class_,
        "arm": name,
        "baseline": base.name,
        "before": before,
        "now": now,
    }
    busier = traffic.get(name, 0) > traffic.get(base.name, 0)
    return CheckedRoute(**found, **_judged(now, change, busier=busier))


def _judged(now: Mapping[str, Any], change: Mapping[str, Any], *, busier: bool) -> dict[str, Any]:
    """State and why; `busier`: the arm had more real requests than its baseline."""
    if "too few" in (now["verdict"], change["verdict"]):
        return {"state": "untold", "why": f"fewer than {MIN_PROMPTS} prompts were answered"}
    slower = now["ci_high"] < STARTS_DIFFER[0]
    if not slower and (change["ci_high"] >= STARTS_DIFFER[0] ** 2 or now["ci_low"] > 1):
        return {"state": "holds", "why": "still faster" if now["ci_low"] > 1 else "no loss is shown"}
    if busier:
        return {"state": "untold", "why": "it had more real requests beside the check than its baseline"}
    return {"state": "broken", "why": "slower" if slower else "its gain is gone"}
