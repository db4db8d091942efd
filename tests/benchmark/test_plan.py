from __future__ import annotations

import json
from typing import Any

import pytest

from tests.benchmark.conftest import plan_content
from trnspec.benchmark.commands.arm_options import overridden
from trnspec.benchmark.errors import PlanError
from trnspec.benchmark.measure.client import request_body, request_path
from trnspec.benchmark.measure.schedule import Pair, measured_blocks
from trnspec.benchmark.plan import MIXED, Plan, from_dict


def plan(**changes: Any) -> Plan:
    return from_dict(plan_content(**changes))


def first_of(made: Plan, class_: str) -> Pair:
    """The first request of a class that counts."""
    block = next(block for block in measured_blocks(made) if block.class_ == class_)
    return next(block.measured())


def arms(*names: str, **baselines: Any) -> list[dict[str, Any]]:
    """Arms of these names, some with a baseline of their own."""
    own = {name: {"baseline": baseline} for name, baseline in baselines.items()}
    return [{"name": name, "url": "http://h/v1", **own.get(name, {})} for name in names]


BATCHES = arms("steady", "spec", "steady_b8", "spec_b8", spec_b8="steady_b8", steady_b8="steady_b8")
TOLD = [*arms("steady"), {**arms("spec")[0], "also_changes": ["asynchronous scheduling is off"]}]


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"rate": [1.5], "concurrency": []}, {"arms": BATCHES}, {"arms": TOLD}),
        {"mixed": True, "cell_minutes": 2.5},
    ],
    ids=str,
)
def test_a_plan_survives_the_way_to_json_and_back(changes: dict[str, Any]) -> None:
    assert from_dict(json.loads(json.dumps(plan(**changes).to_dict()))) == plan(**changes)


def test_what_changes_no_request_makes_no_other_plan() -> None:
    """Words for the report and addresses."""
    plain, spec = plan_content()["arms"]
    for same in ({"also_changes": ["asynchronous scheduling is off"]}, {"url": "http://h/v1"}):
        assert plan(arms=[plain, spec | same]).sha256() == plan().sha256()
    for other in ({"requests": 7}, {"mixed": True}, {"cell_minutes": 1}):
        assert plan(**other).sha256() != plan().sha256()


def test_what_a_plan_does_not_use_is_not_in_its_file() -> None:
    """So that plans of runs that were measured before there were such keys are the same plans still."""
    assert plan(mixed=False) == plan()
    assert not plan().to_dict().keys() & {"mixed", "cell_minutes"}


def test_classes_are_mixed_where_a_plan_says_so_but_not_a_class_alone() -> None:
    assert plan().loaded_with == ("chat", "raw")
    assert plan(mixed=True).loaded_with == (MIXED,)
    assert plan(mixed=True, prompts=[PROMPT]).loaded_with == ("x",)


def test_a_plan_with_fewer_arms_is_otherwise_the_same() -> None:
    whole = plan(arms=BATCHES)
    for names, baselines in {
        ("steady", "spec", "steady_b8", "spec_b8"): whole.baselines,
        ("spec", "steady"): {"steady": "steady", "spec": "steady"},
        ("steady", "spec_b8"): {"steady": "steady", "spec_b8": "steady"},
        ("spec",): {"spec": "spec"},
    }.items():
        few = whole.with_arms(names)
        assert (few.baseline, few.baselines) == (next(iter(baselines)), baselines)
        assert few.model_copy(update={"arms": whole.arms, "baseline": whole.baseline}) == whole


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(PlanError) as error:
        plan(requests=0, concurrency=[0], colour="red", prompts=[{"id": "a", "class": "x", "promt": "?"}])
    for told in ("requests: 0", "concurrency: [0]", "colour: unknown", "prompts[0].promt: unknown"):
        assert told in str(error.value)


PROMPT = {"id": "a", "class": "x", "prompt": "p"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"baseline": "other"}, "'other' is not an arm"),
    ({"schema": 2}, "schema: 2"),
    ({"arms": [{"name": "steady", "url": "host:8000"}]}, "arms[0].url: 'host:8000'"),
    ({"arms": arms("steady", "steady")}, "'steady' appears twice"),
    (
        {"arms": [TOLD[0] | {"also_changes": "off"}]},
        "also_changes: 'off'; must be a list of at most 64 texts",
    ),
    ({"prompts": [{"id": "a", "class": "x"}]}, "exactly one of"),
    ({"prompts": [{"id": "a", "class": "x", "messages": [{"role": "system", "content": "s"}]}]}, "user's"),
    ({"prompts": [PROMPT | {"class": "grün\a"}]}, "prompts[0].class: 'grün\\x07'"),
    ({"prompts": [PROMPT] * 2}, "'a' appears twice"),
    ({"concurrency": [4, 4]}, "4 appears twice"),
    ({"concurrency": []}, "unless `rate` is given"),
    ({"temperature": "hot"}, "temperature: 'hot'"),
    (
        {"arms": arms("steady", "spec", "b8", spec="nobody")},
        "'nobody' is not an arm that is its own baseline",
    ),
    ({"arms": arms("steady", "spec", "b8", spec="nobody")}, "its own baseline; the arms are steady, spec"),
    (
        {"arms": arms("spec", "steady", "b8", spec="spec", steady="spec")},
        "'steady' is not an arm that is its own",
    ),
    ({"arms": arms("steady", "spec", spec=7)}, "arms[1].baseline: 7"),
    ({"mix": {"code": 1}}, "mix: 'code' is not a class of the prompts; their classes are chat, raw"),
    ({"mix": {"chat": 0}}, "mix: {'chat': 0}; must be an object of classes and their shares"),
    ({"timeout_s": 0}, "timeout_s: 0; must be a number above 0"),
    ({"mixed": 1}, "mixed: 1; must be true or false"),
    ({"cell_minutes": 0}, "cell_minutes: 0; must be a number above 0"),
    ({"prompts": [PROMPT | {"at_s": 0.0}]}, "prompts[0].at_s: unknown"),
]


def test_a_plan_that_cannot_work_is_refused() -> None:
    for changes, told in REFUSED:
        with pytest.raises(PlanError) as error:
            plan(**changes)
        assert told in str(error.value)


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    changed = overridden(plan(), {"url": {"spec": "http://other/v1"}}, requests=3)
    assert changed.arm("spec").url == "http://other/v1"
    assert (changed.classes, changed.requests, changed.max_tokens) == (("chat", "raw"), 3, 13)
    assert overridden(plan(), {}) == plan()
    with pytest.raises(PlanError, match="'x' is not in the plan"):
        overridden(plan(), {"url": {"x": "http://h/v1"}})
    for given, maximum in ((8, 8), (80, 50)):  # a ceiling of single prompts too
        ceiling = overridden(plan(prompts=[PROMPT | {"max_tokens": 50}]), {}, max_tokens=given)
        assert ceiling.prompts[0].max_tokens == maximum


def test_a_prompts_own_template_values_are_sent_beside_those_of_the_run() -> None:
    own = {"chat_template_kwargs": {"documents": ["d"]}}
    made = plan(
        prompts=[{"id": "a", "class": "x", "messages": [{"role": "user", "content": "?"}], "request": own}]
    )
    body = json.loads(request_body(made, first_of(made, "x")))
    assert body["chat_template_kwargs"] == {"documents": ["d"], "enable_thinking": False}


def test_a_request_asks_for_usage_in_every_chunk_and_carries_the_plans_settings() -> None:
    pair = first_of(plan(), "raw")
    body = json.loads(request_body(plan(), pair))
    assert (request_path(pair), body["prompt"]) == ("/completions", f"[{pair.nonce}] {pair.prompt.prompt}")
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["stream"], body["temperature"], body["max_tokens"], body["seed"]) == (True, 0.0, 13, 1)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert not body.keys() & {"ignore_eos", "min_tokens"}

    said = [("system", "Be brief."), ("user", "One?"), ("assistant", "1"), ("user", "Two?")]
    messages = [{"role": role, "content": content} for role, content in said]
    made = plan(prompts=[{"id": "a", "class": "x", "messages": messages}])
    pair = first_of(made, "x")
    marked = {"role": "user", "content": f"[{pair.nonce}] Two?"}
    assert request_path(pair) == "/chat/completions"
    assert json.loads(request_body(made, pair))["messages"] == [*messages[:3], marked], (
        "before the last of the user"
    )
