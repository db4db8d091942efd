"""Replays: prompts that arrive when they say, and conversations whose turns wait for each other, alike for each arm."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.errors import PlanError
from benchmark.measure import journal
from benchmark.measure.client import request_body
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.measure.schedule import asked_as, measured_turns, replay, warmup_turns
from benchmark.plan import Load, Plan, from_dict
from tests.benchmark.conftest import STEADY, Captured, Run, plan_content
from tests.benchmark.endpoint import MODEL, Endpoint, Seen, served
from tests.benchmark.measure.test_run import lose, measured, summary
from tests.benchmark.records import answered

SEARCH = {"low": 1, "high": 4}
TIMES = (0.0, 0.02, 0.02, 0.05, 0.06, 0.1, 0.3, 0.31)


def line(id_: str, at_s: float | None = None, **more: Any) -> dict[str, Any]:
    own = {"messages": [{"role": "user", "content": f"Question {id_}?"}]} | more
    return {"id": id_, "class": "chat", **own} | ({} if at_s is None else {"at_s": at_s})


ARRIVALS = [line(f"p{number}", at_s) for number, at_s in enumerate(TIMES)]
TALK = [
    line("first", 0.0, conversation="talk"),
    line("second", conversation="talk", think_s=0.03),
    line("third", 0.4, conversation="talk"),
    line("beside", 0.01),
]
RECORDED: dict[str, Any] = {
    "messages": [{"role": "assistant", "content": "as recorded"}, {"role": "user", "content": "And?"}]
}


def asked(prompts: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    load = {} if any("at_s" in one for one in prompts) else {"concurrency": [2]}
    return {"prompts": prompts, "requests": len(prompts), "concurrency": [], "rate": []} | load | changes


def plan_of(prompts: list[dict[str, Any]], **changes: Any) -> Plan:
    return from_dict(plan_content(**asked(prompts, **changes)))


def by_arm(raw: RawRun) -> dict[str, list[RequestRecord]]:
    return {
        arm.name: [r for r in raw.requests if r.arm == arm.name and r.phase == "measured"]
        for arm in raw.plan.arms
    }


def content_of(one: Seen) -> str:
    return "\n".join(f"{said['role']}: {said['content']}" for said in one.body["messages"])


def reported(out: Path) -> str:
    assert main(["report", str(out)]) == 0
    return (out / "report.html").read_text()


def test_each_arm_meets_the_arrivals_of_the_file_in_their_order(tmp_path: Path) -> None:
    file, out = tmp_path / "traffic.jsonl", tmp_path / "out"
    file.write_text("\n".join(map(json.dumps, [*ARRIVALS[4:], *ARRIVALS[:4]])))
    with served(first_ms=20, step_ms=4) as server:
        arms = [f"--arm=plain={server.url('steady')}", f"--arm=draft={server.url('bursts')}"]
        told = [f"--prompts={file}", f"--out={out}", f"--model={MODEL}", "--max-tokens=9"]
        assert main(["run", *arms, *told, "--speculative-tokens=draft=7", "--tokens-per-step=draft=8"]) == 0
        truth = server.truth()
    raw = journal.read(out)
    found = by_arm(raw)
    for arm, records in found.items():
        recorded = {one.pair_id: one for one in records}
        parts = [block.pairs for (block,) in measured_turns(raw.plan) if block.arm == arm]
        assert [pair.prompt.at_s for part in parts for pair in part] == sorted(TIMES)
        for block, part in zip((b for b in raw.blocks if b.arm == arm), parts, strict=True):
            asked = [recorded.pop(pair.id) for pair in part]
            due_s = [one.scheduled_s or 0.0 for one in asked]
            apart_s = [(pair.prompt.at_s or 0.0) - (part[0].prompt.at_s or 0.0) for pair in part]
            assert [at_s - due_s[0] for at_s in due_s] == pytest.approx(apart_s, abs=1e-5)
            started_s = [one.started_unix_s - block.started_unix_s for one in asked]
            assert all(at_s >= due - 0.005 for at_s, due in zip(started_s, due_s, strict=True)), "never early"
        assert recorded == {}
    assert len({frozenset((r.pair_id, r.scheduled_s, r.nonce) for r in found[arm]) for arm in found}) == 1
    keys = [{one["key"] for one in truth if one["arm"] == arm} for arm in ("steady", "bursts")]
    assert {record.nonce for record in found["plain"]} <= keys[0] & keys[1]


def test_a_late_client_adds_to_its_times(run: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when a request was to be sent, not from when the client came to it."""

    def slow(*args: Any) -> bytes:
        time.sleep(0.05)
        return request_body(*args)

    monkeypatch.setattr("benchmark.measure.loader.request_body", slow)
    assert run("--warmup 0", **asked(ARRIVALS[:1])) == 0
    assert all(one["ttft_s"] >= 0.05 + STEADY.first_s for one in measured(out))


def test_a_turn_waits_for_the_last_answer_alike_in_both_arms(run: Run, out: Path, endpoint: Endpoint) -> None:
    endpoint.arms["spec"] = replace(endpoint.arms["spec"], word="other")
    talk = [*TALK, line("fourth", conversation="talk", **RECORDED)]
    assert run("--warmup 0", **asked(talk)) == 0
    load = endpoint.seen[: 2 * len(talk)]  # differing answers are looked at after it
    said = {arm: [one for one in load if one.arm == arm] for arm in endpoint.arms}
    bodies = {arm: sorted(map(content_of, seen)) for arm, seen in said.items()}
    assert bodies["steady"] == bodies["spec"], "although their answers differ"
    for seen in said.values():
        turns = [one for one in seen if "beside" not in content_of(one)]
        assert [len(one.body["messages"]) for one in turns] == [1, 3, 5, 7]
        for before, after in pairwise(turns):
            assert after.began >= before.ended
            assert after.body["messages"][: len(before.body["messages"])] == before.body["messages"]
        answers = [one["content"] for one in turns[3].body["messages"] if one["role"] == "assistant"]
        assert [answer.split()[0] for answer in answers] == ["word0", "word0", "as"], "the recorded one"
    page = reported(out)
    assert "3, after the recorded answer or the first that an arm gave, the same to each arm" in page
    assert "recorded arrivals" in page
    for records in by_arm(journal.read(out)).values():
        found = {one.prompt_id: one for one in records}
        assert (found["third"].scheduled_s or 0) >= 0.4
        thought_s = (found["second"].scheduled_s or 0) - (found["first"].e2e_s or 0)
        assert thought_s >= 0.03 - 0.001, "it thinks"


def test_conversations_without_times_are_held_n_at_once(run: Run, out: Path, endpoint: Endpoint) -> None:
    talks = [line(f"{talk}-{turn}", conversation=talk) for talk in "abcdef" for turn in range(3)]
    assert run("--warmup 0", **asked(talks)) == 0
    steady = [one for one in endpoint.seen if one.arm == "steady"]
    assert max(sum(o.began <= one.began < o.ended for o in steady) for one in steady) == 2
    assert sorted(len(one.body["messages"]) for one in steady) == [1] * 6 + [3] * 6 + [5] * 6
    assert {r.concurrency for r in journal.read(out).requests} == {2}


def test_an_interrupted_replay_goes_on_with_its_answers(run: Run, out: Path, endpoint: Endpoint) -> None:
    talk = [line(f"t{turn}", 0.0 if turn == 0 else None, conversation="talk") for turn in range(4)]
    assert run("--warmup 0", **asked(talk)) == 0
    whole = {arm: sorted(content_of(one) for one in endpoint.seen if one.arm == arm) for arm in endpoint.arms}
    lose(out, 2)
    endpoint.seen.clear()
    endpoint.arms["steady"] = endpoint.arms["spec"] = replace(endpoint.arms["spec"], word="new")
    assert run("--warmup 0", **asked(talk)) == 0
    assert [content_of(one) for one in endpoint.seen[:2]] == whole["spec"][-2:]
    assert summary(out)["run"]["complete"] is True
    assert len(journal.read(out).sessions) == 2


def test_no_turn_follows_an_answer_that_never_came(run: Run, out: Path, endpoint: Endpoint) -> None:
    talk = [*TALK[:2], line("recorded", conversation="talk", **RECORDED), line("last", conversation="talk")]
    arms = [{"name": "reset", "url": "http://x/v1"}]
    assert run("--warmup 0", **asked(talk, arms=arms, baseline="reset")) == 1
    errors = {one["prompt_id"]: one["error"] for one in measured(out)}
    later = dict.fromkeys(("second", "recorded", "last"), "no_turn_before")
    assert errors == {"first": "reset", **later}
    assert len(endpoint.seen) == 1


def test_report_page_and_prediction_name_made_up_texts(run: Run, out: Path, capsys: Captured) -> None:
    lines = [one | {"made_up": number > 1} for number, one in enumerate(ARRIVALS)]
    assert run("--warmup 0", **asked(lines)) == 0
    said = "6 of 8 prompts have made-up texts with the lengths of recorded ones"
    for text in (capsys.readouterr().out, reported(out)):
        assert said in " ".join(text.split())
        assert "othing is recommended, because texts were made up" in " ".join(text.split())
    assert main(["advise", str(out)]) == 0
    assert "with made-up texts, whose acceptance is not that of your traffic" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["advise", "--acceptance", str(out / "summary.json"), "--step-times", "0=0.04,7=0.09"]) == 2
    assert "its texts were made up, and acceptance depends on the text" in capsys.readouterr().err


def test_a_replay_is_cut_into_parts_and_no_conversation_is() -> None:
    plan = plan_of([*TALK, *(line(f"q{number}", 1.0 + number) for number in range(10))])
    turns = list(measured_turns(plan))
    order = "".join("ab"[block.arm == "spec"] for (block,) in turns)
    assert order == "abbabaab"
    parts = [[pair.prompt.id for pair in block.pairs] for (block,) in turns if block.arm == "steady"]
    assert parts[0] == ["first", "second", "third"]
    assert [len(part) for part in parts] == [3, 4, 3, 4]
    assert [name for part in parts for name in part] == [one.id for one in plan.prompts]
    gaps = [
        pair.gap_s for (block,) in turns if block.arm == "spec" for pair in block.pairs if pair.after is None
    ]
    assert gaps == pytest.approx([0, 0.01, 0.99, *[1] * 9])


def test_each_round_of_a_replay_has_nonces_of_its_own_and_a_warm_up_no_later_turn() -> None:
    plan = plan_of(TALK, rounds=2, warmup=4)
    one, two = ([pair for turns in replay(plan, Load(), round_) for pair in turns] for round_ in (1, 2))
    assert [pair.gap_s for pair in one] == [pair.gap_s for pair in two]
    assert not {pair.nonce for pair in one} & {pair.nonce for pair in two}
    assert not {pair.id for pair in one} & {pair.id for pair in two}
    ((steady,), _) = warmup_turns(plan, 1)
    assert {pair.prompt.id for pair in steady.pairs} == {"first", "beside"}


def test_arms_at_one_address_have_other_nonces_in_every_turn_and_are_found_again() -> None:
    arms = [{"name": name, "url": "http://same/v1"} for name in ("steady", "again")]
    plan = plan_of(TALK, arms=arms)
    for (block,) in measured_turns(plan):
        for pair in block.pairs:
            if pair.after is not None:
                (before,) = (one for one in block.pairs if one.id == pair.after.id)
                assert pair.after == before
            own = answered(block.arm, class_=pair.class_, concurrency=None, prompt_id=pair.prompt.id)
            assert asked_as(plan, replace(own, nonce=pair.nonce, pair_id=pair.id)) == pair


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (asked(ARRIVALS, concurrency=[4]), r"\(at_s\), which decide the load; leave concurrency out"),
        (asked(ARRIVALS, rate=[4.0]), "leave rate out"),
        (asked(ARRIVALS, search=SEARCH), "leave search out"),
        (asked([line("a", conversation="c")], concurrency=[], search=SEARCH), "leave search out"),
        (asked(ARRIVALS, requests=3), "requests: 3; .*each of the 8 is asked once in a round"),
        (asked([*ARRIVALS, line("x")]), "'x' has no at_s, and others have"),
        (asked([line("a", -1.0)]), r"prompts\[0\].at_s: -1.0; must be a number from 0"),
        (asked([line("a", 1.7e9)]), r"prompts\[0\].at_s: 1700000000.0; must be a number from 0 to 2,678,400"),
        (asked([line("a", 2.0, conversation="c"), line("b", 1.0, conversation="c")]), "another order"),
        (
            asked([{"id": "a", "class": "x", "prompt": "p", "conversation": "c", "at_s": 0}]),
            "a turn of a conversation needs `messages`",
        ),
    ],
)
def test_a_replay_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        from_dict(plan_content(**changes))
