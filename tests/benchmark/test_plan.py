from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.commands.option_types import overridden
from benchmark.errors import PlanError
from benchmark.measure.client import request_body, request_path
from benchmark.measure.schedule import pairs
from benchmark.plan import Load, Plan, from_dict, load
from tests.benchmark.conftest import plan_content


def plan(**changes: Any) -> Plan:
    return from_dict(plan_content(**changes))


@pytest.mark.parametrize("changes", [{}, {"rate": [1.5], "concurrency": []}])
def test_a_plan_survives_the_way_to_json_and_back(changes: dict[str, Any]) -> None:
    assert from_dict(json.loads(json.dumps(plan(**changes).to_dict()))) == plan(**changes)


def test_words_for_the_report_travel_and_do_not_make_another_plan() -> None:
    plain, spec = plan_content()["arms"]
    told = plan(arms=[plain, spec | {"also_changes": ["asynchronous scheduling is off"]}])
    assert told.arms[1].also_changes == ("asynchronous scheduling is off",)
    assert from_dict(json.loads(json.dumps(told.to_dict()))) == told
    assert told.sha256() == plan().sha256()
    with pytest.raises(PlanError, match=r"arms\[1\].also_changes: 'off'; must be a list of at most 64 texts"):
        plan(arms=[plain, spec | {"also_changes": "off"}])


def batches(**baselines: Any) -> dict[str, Any]:
    """Arms with baselines of their own, and one that names none."""
    arms = [{"name": name, "url": "http://h/v1", "baseline": own} for name, own in baselines.items()]
    steady = [] if "steady" in baselines else [{"name": "steady", "url": "http://h/v1"}]
    return {"arms": [*steady, *arms, {"name": "steady-b8", "url": "http://h/v1"}]}


def test_an_arm_has_the_plans_baseline_or_its_own() -> None:
    named = {"spec-b8": "steady-b8", "steady-b8": "steady-b8"}
    arms = [{"name": name, "url": "http://h/v1"} for name in ("steady", "spec", *named)]
    whole = plan(
        arms=[arm | ({"baseline": named[arm["name"]]} if arm["name"] in named else {}) for arm in arms]
    )
    assert whole.baselines == {"steady": "steady", "spec": "steady"} | named
    of_round = whole.with_arms(["steady-b8", "spec-b8"])
    assert (of_round.baseline, of_round.baselines) == ("steady-b8", named)
    assert whole.with_arms(["steady", "spec-b8"]).baselines == {"steady": "steady", "spec-b8": "steady"}
    assert from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(PlanError) as error:
        plan(requests=0, concurrency=[0], colour="red", prompts=[{"id": "a", "class": "x", "promt": "?"}])
    for told in ("requests: 0", "concurrency: [0]", "colour: unknown", "prompts[0].promt: unknown"):
        assert told in str(error.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"baseline": "other"}, "'other' is not an arm"),
        ({"schema": 2}, "schema: 2"),
        ({"arms": [{"name": "steady", "url": "host:8000"}]}, "arms[0].url: 'host:8000'"),
        ({"arms": [{"name": "steady", "url": "http://h/v1"}] * 2}, "'steady' appears twice"),
        ({"prompts": [{"id": "a", "class": "x"}]}, "exactly one of"),
        (
            {"prompts": [{"id": "a", "class": "x", "messages": [{"role": "system", "content": "s"}]}]},
            "user's",
        ),
        ({"prompts": [{"id": "a", "class": "grün", "prompt": "p"}]}, "prompts[0].class: 'grün'"),
        ({"prompts": [{"id": "a", "class": "x", "prompt": "p"}] * 2}, "'a' appears twice"),
        ({"concurrency": [4, 4]}, "4 appears twice"),
        ({"concurrency": []}, "unless `rate` is given"),
        ({"temperature": "hot"}, "temperature: 'hot'"),
        (
            batches(spec="nobody"),
            "'nobody' is not an arm that is its own baseline; the arms are steady, spec",
        ),
        (
            batches(spec="spec", steady="spec"),
            "'steady' is not an arm that is its own baseline",
        ),
        (batches(spec=7), "arms[1].baseline: 7"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(**changes)
    assert told in str(error.value)


def test_a_file_that_is_no_plan_is_refused_by_its_name(tmp_path: Path) -> None:
    broken = tmp_path / "plan.json"
    broken.write_text("{")
    for path, told in ((broken, "not JSON"), (tmp_path / "none.json", "cannot be read")):
        with pytest.raises(PlanError, match=told) as error:
            load(path)
        assert str(path) in str(error.value)


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    changed = overridden(plan(), {"url": {"spec": "http://other/v1"}}, classes=("raw",), requests=3)
    assert changed.arm("spec").url == "http://other/v1"
    assert (changed.classes, changed.requests, changed.max_tokens) == (("raw",), 3, 13)
    assert overridden(plan(), {}) == plan()
    assert overridden(plan(), {"url": {"spec": "http://h/v1"}}).sha256() == plan().sha256()
    assert plan(requests=7).sha256() != plan().sha256()
    for of_arms, classes in (({"url": {"x": "http://h/v1"}}, None), ({}, ("x",))):
        with pytest.raises(PlanError, match="'x' is not in the plan"):
            overridden(plan(), of_arms, classes=classes)
    prompts = [{"id": "a", "class": "x", "prompt": "p", "max_tokens": 50}]
    for given, most in ((8, 8), (80, 50)):  # a ceiling of single prompts too
        assert overridden(plan(prompts=prompts), {}, max_tokens=given).prompts[0].max_tokens == most


def test_a_plan_with_fewer_arms_is_otherwise_the_same() -> None:
    whole = plan(requests=7)
    few = whole.with_arms(["spec"])
    assert (few.arms, few.baseline) == ((whole.arm("spec"),), "spec")
    assert whole.with_arms(["steady", "spec"]) == whole
    assert few.model_copy(update={"arms": whole.arms, "baseline": whole.baseline}) == whole


def test_the_nonce_stands_before_the_last_user_message() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    ]
    made = plan(prompts=[{"id": "a", "class": "x", "messages": messages}])
    pair = next(pairs(made, "x", Load(concurrency=2)))
    body = json.loads(request_body(made, pair))
    assert body["messages"] == [*messages[:3], {"role": "user", "content": f"[{pair.nonce}] Two?"}]
    assert request_path(pair) == "/chat/completions"


def test_a_request_asks_for_usage_in_every_chunk_and_carries_the_plans_settings() -> None:
    pair = next(pairs(plan(), "raw", Load(concurrency=2)))
    body = json.loads(request_body(plan(), pair))
    assert (request_path(pair), body["prompt"]) == ("/completions", f"[{pair.nonce}] Beginning 0")
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["stream"], body["temperature"], body["max_tokens"], body["seed"]) == (True, 0.0, 13, 1)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
