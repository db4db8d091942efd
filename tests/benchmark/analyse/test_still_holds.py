"""Is a policy that still holds rarely called broken, and one that pays no longer found? Simulated services, and the real client."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.analyse.still_holds import CheckedRoute, checked, cut, smaller_plan
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun, read
from benchmark.plan import Load, from_dict
from tests.benchmark.analyse.held_runs import SimulatedRun, run_of, servers
from tests.benchmark.conftest import STEADY, Run, plan_content
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.records import answered, failed, raw_run, recorded_run
from tests.measure.steady_state import Workload

ROUTES = {"chat": "spec"}


def rechecked(seed: int, k: int, *, kept: float = 1.0) -> CheckedRoute:
    """What a recheck says of a service of window k whose servers were started again since; of the drafts that were accepted so much is kept."""
    dice, work = random.Random(seed), Workload()
    arms = servers(dice, {"plain": 0, "spec": k}, 1)
    empty = run_of(arms, work, prompts=24, concurrency=[1, 4], requests=24)
    first = SimulatedRun(empty=empty, arms=arms, work=work, dice=dice)
    promoted = first.listed()
    plan, load = smaller_plan(promoted, ROUTES, at_once=2)
    now = replace(work, shares=tuple(kept * share for share in work.shares))
    again = servers(dice, {"plain": 0, "spec": k}, 1)
    small = SimulatedRun(empty=empty.with_plan(plan), arms=again, work=now, dice=dice)
    vars(small).update(difficulty=first.difficulty, lengths=first.lengths)  # the same prompts
    (row,) = checked(cut(promoted, plan, load), small.listed(), ROUTES, traffic={})
    return row


@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_unchanged_service_is_rarely_called_changed(k: int) -> None:
    """From a clear gain (1.3) to one that is hardly there (1.05), where servers differ from start to start as they were seen to."""
    states = Counter(rechecked(seed, k).state for seed in range(100))
    assert states["broken"] <= 5
    assert states["untold"] == 0


def test_a_service_whose_drafts_are_no_longer_accepted_is_found_out() -> None:
    states = Counter(rechecked(seed, 3, kept=0.3).state for seed in range(20))
    assert states["broken"] >= 18


def test_a_run_is_cut_to_the_same_prompts_and_the_same_load_first(tmp_path: Path) -> None:
    raw = recorded_run("e3k1-list", tmp_path)
    plan, load = smaller_plan(raw, {"general": "drafted"}, at_once=2)
    assert (plan.concurrency, load, len(plan.prompts)) == ((2,), Load(concurrency=24), 8)
    assert from_dict(json.loads(json.dumps(plan.to_dict(exclude_unset=True)))) == plan
    old = cut(raw, plan, load)
    assert {one.load for one in old.requests} == {Load(concurrency=2)}
    assert {one.prompt_id for one in old.requests} == {one.id for one in plan.prompts}
    (row,) = checked(old, old, {"general": "drafted"}, traffic={})
    assert (row.state, str(row)) == (
        "holds",
        "general: drafted was 1.06 [1.03, 1.09] times as fast as plain, now 1.06 [1.03, 1.09]: still faster",
    )


def told(speed: float, *, then: float = 2.0, errors: int = 0, **traffic: int) -> CheckedRoute:
    """Of eight prompts, each a little different from the others."""

    def run(ratio: float, errors: int) -> RawRun:
        requests = []
        for pair in range(8):
            step_s = 0.1 * (1 + pair / 100)
            own: dict[str, Any] = {"pair": pair, "prompt_id": f"chat-{pair}"}
            fast_s = step_s / ratio * (1 + pair % 3 / 100)
            requests.append(answered("steady", **own, chunk_s=(0.1, 0.1 + step_s)))
            requests.append(
                failed("spec", **own)
                if pair < errors
                else answered("spec", **own, chunk_s=(0.1, 0.1 + fast_s))
            )
        prompts = [{"id": f"chat-{i}", "class": "chat", "prompt": "x"} for i in range(8)]
        return raw_run(*requests, prompts=prompts)

    old = run(then, 0)
    plan, load = smaller_plan(old, ROUTES, at_once=2)
    (row,) = checked(cut(old, plan, load), run(speed, errors).with_plan(plan), ROUTES, traffic=traffic)
    return row


def test_what_is_found_follows_from_the_speed_of_now_and_from_what_was_promised() -> None:
    assert (told(1.2).state, told(1.2).why) == ("holds", "still faster"), "less of a gain is a gain"
    assert (told(1.0).state, told(1.0).why) == ("broken", "its gain is gone")
    assert (told(0.8).state, told(0.8).why) == ("broken", "slower")
    assert told(0.97, then=1.0).why == "no loss is shown", "another start of the servers makes as much"
    assert told(0.8, spec=3, steady=3).state == "broken"
    busy = told(0.8, spec=3, steady=1)
    assert (busy.state, busy.why) == (
        "untold",
        "it had more real requests beside the check than its baseline",
    )
    assert (told(1.2, errors=3).state, told(1.2, errors=3).why) == (
        "untold",
        "fewer than 6 prompts were answered",
    )


def test_what_cannot_be_cut_is_refused() -> None:
    few = raw_run(*(answered(arm, pair) for arm in ("steady", "spec") for pair in range(3)))
    with pytest.raises(ResultsError, match="no class has 6 prompts that steady and spec answered"):
        smaller_plan(few, ROUTES, at_once=2)
    content = plan_content(requests=12, concurrency=[])
    timed = [{**one, "at_s": 0.1} for one in content["prompts"]]
    replayed = few.with_plan(from_dict({**content, "prompts": timed}))
    with pytest.raises(ResultsError, match="has no load that a smaller run could be compared at"):
        smaller_plan(replayed, ROUTES, at_once=2)


@pytest.mark.slow  # three runs of the real client
def test_the_real_client_finds_out_that_drafting_became_slower(
    run: Run, endpoint: Endpoint, tmp_path: Path, out: Path
) -> None:
    assert run() in (0, 1)
    promoted = read(out)
    plan, load = smaller_plan(promoted, {"chat": "spec", "raw": "spec"}, at_once=2)
    path = tmp_path / "small.json"
    path.write_text(json.dumps(plan.to_dict(exclude_unset=True)))

    def again(folder: Path) -> list[str]:
        words = ["run", "--plan", str(path), "--out", str(folder), "--no-sense-check", "--closer-look", "0"]
        assert main(words) in (0, 1)
        small = read(folder)
        rows = checked(cut(promoted, small.plan, load), small, {"chat": "spec", "raw": "spec"}, traffic={})
        return [row.state for row in rows]

    assert again(tmp_path / "unchanged") == ["holds", "holds"]
    endpoint.arms["spec"] = replace(STEADY, step_s=0.003)
    assert again(tmp_path / "changed") == ["broken", "broken"]
