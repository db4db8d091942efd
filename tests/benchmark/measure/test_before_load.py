"""Whether the baseline answers sensibly, and what the servers say that is different between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benchmark.conftest import Captured, WritePlan, plan_content, reported
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.measure.test_run import summary
from tests.benchmark.records import raw_run, store
from tests.conftest import ROOT
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure import journal, sanity_check
from trnspec.benchmark.measure.records import QuestionRecord, to_json
from trnspec.benchmark.measure.sanity_check import QUESTIONS

RIGHT = {one.text: f"The answer is **{one.accepted[0].title()}**." for one in QUESTIONS}
LOOP = "Paris is the capital. " * 8


def answering(answers: Mapping[str, str]) -> Callable[[dict[str, Any]], str | None]:
    """What an endpoint says to the built-in questions; other requests get the arm's own words."""

    def says(body: dict[str, Any]) -> str | None:
        text = (body.get("messages") or [{}])[-1].get("content", "")
        return next((said for question, said in answers.items() if text.startswith(question)), None)

    return says


@pytest.fixture
def checked(write_plan: WritePlan, out: Path) -> Callable[..., int]:
    """A run that is not told to leave the questions out."""
    return lambda *options, **changes: main(
        ["run", "--plan", str(write_plan(**changes)), "--out", str(out), *options]
    )


def with_wrong(count: int) -> dict[str, str]:
    """Answers of which so many are wrong."""
    return {
        text: "I like bread." if index < count else said for index, (text, said) in enumerate(RIGHT.items())
    }


def asked(endpoint: Endpoint, arm: str = "steady") -> list[str]:
    texts = [
        (seen.body.get("messages") or [{}])[0].get("content", "") for seen in endpoint.seen if seen.arm == arm
    ]
    return [text for text in texts if text.startswith(tuple(RIGHT))]


@pytest.mark.slow
def test_each_arm_is_asked_before_the_load_and_a_resumed_run_does_not_ask_again(
    checked: Callable[..., int], endpoint: Endpoint, out: Path, capsys: Captured
) -> None:
    endpoint.says = answering(RIGHT)
    assert checked("--exit-zero") == 0
    told = capsys.readouterr().err
    for arm in ("steady", "spec"):
        assert f"questions: {arm} answered 12 of 12 questions correctly" in told
        assert len(asked(endpoint, arm)) == 12
    first = endpoint.seen[2:14]  # after a request to each arm, which shows what fields it takes
    assert [(seen.arm, seen.body["temperature"]) for seen in first] == [("steady", 0)] * 12
    assert first[0].body["chat_template_kwargs"] == {"enable_thinking": False}
    assert [(one["right"], one["withheld"]) for one in summary(out)["sense"]] == [(12, False)] * 2
    assert checked("--exit-zero") == 0
    assert len(asked(endpoint)) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "withheld"),
    [(with_wrong(4), False), (with_wrong(5), True), (RIGHT | {QUESTIONS[0].text: LOOP}, True)],
)
def test_fewer_than_eight_right_answers_withhold_every_verdict_and_name_the_questions(
    checked: Callable[..., int],
    endpoint: Endpoint,
    out: Path,
    capsys: Captured,
    answers: dict[str, str],
    withheld: bool,
) -> None:
    endpoint.says = answering(answers)
    ends = {1} if withheld else {0, 1}  # 1 too where the client was late
    assert checked("--requests", "12") in ends
    told = " ".join("".join(capsys.readouterr()).split())
    found = summary(out)
    judged = {one["verdict"] for one in (*found["comparisons"], *found["mix"])}
    assert {one["withheld"] for one in found["sense"]} == {withheld}
    assert (judged == {"withheld"}) >= withheld
    assert ("repeats itself without end" in told) is (LOOP in answers.values())
    assert ('What is the capital of France? "' in told) is withheld
    assert ("Do not switch yet: steady answered" in told) is withheld
    assert (found["advice"][0]["advice"] == "do not switch yet") >= withheld
    assert main(["report", str(out)]) in ends
    page = (out / "report.html").read_text()
    assert ("Do not switch yet: steady answered" in page) is withheld
    assert ("What is the capital of France?" in page) is withheld
    assert summary(out)["sense"] == found["sense"], "it is judged again from the raw files alone"


@pytest.mark.slow
def test_what_is_withheld_is_nowhere_else_either(
    checked: Callable[..., int], endpoint: Endpoint, out: Path, capsys: Captured
) -> None:
    endpoint.says = answering(with_wrong(12))
    assert checked("--concurrency", "1,2,3", "--requests", "6") == 1
    found = summary(out)
    assert [found[key] for key in ("explanations", "best", "pays_up_to")] == [[], [], []]
    assert {one["ratio"] for one in (*found["comparisons"], *found["mix"])} == {None}
    assert all(cell["n"] for cell in found["cells"]), "what was measured stays"
    for line in ("faster", "pays", "slower"):
        assert line not in capsys.readouterr().out
    assert main(["advise", str(out)]) == 2
    assert "answered 0 of 12 questions correctly" in capsys.readouterr().err
    assert main(["gate", str(out), "--baseline", str(out)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot be judged: run" in said
    assert "steady answered 0 of 12" in said


RAW = [{"id": f"raw-{i}", "class": "raw", "prompt": f"Beginning {i}"} for i in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize("why", ["--questions none", "dummies", "are emulated", "raw text"])
def test_it_is_skipped_with_one_line_that_says_why(
    checked: Callable[..., int], endpoint: Endpoint, out: Path, capsys: Captured, why: str
) -> None:
    if why == "are emulated":
        endpoint.arms = {arm: replace(one, owned_by="emulator") for arm, one in endpoint.arms.items()}
    options, plans = (
        why.split() * why.startswith("--"),
        {"raw text": {"prompts": RAW}, "dummies": {"dummy_weights": True}},
    )
    assert checked("--exit-zero", *options, **plans.get(why, {})) == 0
    (told,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("questions skipped")]
    assert why in told
    assert asked(endpoint) == []
    assert journal.read(out).sense == ()
    assert summary(out)["sense"] == []


def test_a_question_without_an_answer_is_wrong(
    checked: Callable[..., int], endpoint: Endpoint, out: Path
) -> None:
    assert checked("--arm", f"steady={endpoint.url('500')}", "--warmup", "0") in (0, 1)
    found, other = summary(out)["sense"]
    assert (found["arm"], found["right"], found["withheld"]) == ("steady", 0, True)
    assert "no answer (http_500)" in found["text"]
    assert other["arm"] == "spec"


def test_the_users_own_questions_are_asked_as_they_are_and_judged(
    checked: Callable[..., int], endpoint: Endpoint, tmp_path: Path, out: Path, capsys: Captured
) -> None:
    own = [
        {"question": "Our product?", "answer": ["Trnspec", "trn-spec"]},
        {"question": "Its year?", "answer": "2026"},
    ]
    (path := tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, own)))
    endpoint.says = answering({"Our product?": "It is trn-spec.", "Its year?": "It was 1999."})
    assert checked("--exit-zero", "--questions", str(path)) == 0
    assert "spec answered 1 of 2 questions correctly: Its year?" in " ".join(capsys.readouterr().err.split())
    assert {(one["needed"], one["withheld"]) for one in summary(out)["sense"]} == {(2, True)}
    assert [one["messages"][0]["content"] for one in (seen.body for seen in endpoint.seen[2:4])] == [
        one["question"] for one in own
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "has 0 lines; must have 1 to 100"),
        (
            '{"question": "One?"}',
            """line 1: '{"question": "One?"}'; must be {"question": TEXT, "answer": TEXT""",
        ),
        ('\n{"question": 1, "answer": "1"}', "line 2: 1; must be"),
        ('{"question": "One?", "answer": []}', "line 1: ''; must be"),
        ("[1]", "line 1: '[1]'; must be"),
    ],
)
def test_a_bad_file_of_questions_is_one_line_and_nothing_is_sent(
    checked: Callable[..., int], endpoint: Endpoint, tmp_path: Path, capsys: Captured, content: str, told: str
) -> None:
    (path := tmp_path / "own.jsonl").write_text(content)
    assert checked("--questions", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--questions {path}: {told}" in line
    assert endpoint.seen == []


def test_questions_of_another_run_damaged_ones_and_those_asked_twice_are_left_out(tmp_path: Path) -> None:
    path = store(raw_run(), tmp_path) / journal.FILE_NAME
    lines = [to_json(answer(RIGHT[one.text], one.text, one.accepted)) for one in QUESTIONS]
    lines[0]["run"], lines[1]["accepted"] = "another", []
    path.write_text(path.read_text() + "".join(f"{json.dumps(line)}\n" for line in [*lines, lines[2]]))
    raw = journal.read(tmp_path)
    assert [one.question for one in raw.sense] == [one.text for one in QUESTIONS[2:]]
    assert raw.unusable_lines.startswith(f"{journal.FILE_NAME}: 3 lines cannot be used")
    assert sanity_check.outcomes(()) == []


def answer(
    text: str | None, question: str = "Q?", accepted: Sequence[str] = ("42",), **more: Any
) -> QuestionRecord:
    return QuestionRecord(
        run="r1",
        arm="steady",
        question=question,
        accepted=tuple(accepted),
        started_unix_s=1.0,
        text=text,
        **more,
    )


NUMBER, TIMES = ("42",), 4
ANSWERS: list[tuple[str, tuple[str, ...], str]] = [
    *((text, NUMBER, "right") for text in ("42", "The sum is 42.", "17 + 25 = **42**", "42。答案是四十二。")),
    ("Forty-two!", ("42", "forty-two"), "right"),
    ("<think>They ask for the capital of France. It is Paris", ("paris",), "right"),
    ("H₂O", ("h2o", "h₂o"), "right"),
    ("It is...earth", ("earth",), "right"),
    ("The answer is 42, because 17 plus 25 is 42; and 20 plus 22 is 42 as well.", NUMBER, "right"),
    ("In JavaScript, getElementById and iPhone are words; 42 is what you asked about.", NUMBER, "right"),
    ("| a | b |\n|---|---|\n| 17 | 25 |\nSum: 42", NUMBER, "right"),
    *((text, NUMBER, "wrong") for text in ("142", "420", "42.5", "3.42", "x42", "", "no idea")),
    *((text, NUMBER, "loop") for text in ("!" * 60, "42 " * 14, "the " * 12, "The answer is 42.\n" * TIMES)),
    ("巴黎是法国的首都。" * 6, NUMBER, "loop"),
    ("1. Paris is nice 2. Paris is nice 3. Paris is nice 4. Paris is nice", NUMBER, "loop"),
    ("4\N{REPLACEMENT CHARACTER}2\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} 42", NUMBER, "noise"),
    ("42 \x07 bell", NUMBER, "noise"),
    ("42 the дом 家庭 ελληνικά בית", NUMBER, "noise"),
    ("qzXkjw vbnmTrs pqlRrt zxcvbnm hjklXw ghfdPlk wrtpSdf mnbvcx 42", NUMBER, "noise"),
]


@pytest.mark.parametrize(("text", "accepted", "judgement"), ANSWERS)
def test_an_answer_is_judged_by_what_it_holds(text: str, accepted: tuple[str, ...], judgement: str) -> None:
    assert sanity_check.judged(answer(text, accepted=accepted)) == judgement


@pytest.mark.slow
def test_what_the_servers_say_that_is_different_is_among_what_drafting_also_changes(
    checked: Callable[..., int], endpoint: Endpoint, out: Path, capsys: Captured
) -> None:
    info = 'vllm:cache_config_info{{block_size="16",cache_dtype="{}",engine="0",num_gpu_blocks="{}"}} 1.0\n'
    endpoint.metrics = {"steady": lambda: info.format("auto", 9000), "spec": lambda: info.format("fp8", 8000)}
    endpoint.versions = {"steady": "0.29.0", "spec": "0.24.0"}
    steady, spec = plan_content()["arms"]
    told = [steady, {**spec, "also_changes": ["synchronous scheduling", "a=b"]}]
    assert checked("--questions", "none", "--exit-zero", arms=told) == 0
    arms = journal.read(out).plan.arms
    found = ["version is 0.24.0, of steady 0.29.0", "cache_dtype is fp8, of steady auto"]
    assert [arm.also_changes for arm in arms] == [(), ("synchronous scheduling", "a=b", *found)]
    assert journal.read(out).sessions[0].versions == {"steady": "0.29.0", "spec": "0.24.0"}
    assert "steady: vllm 0.29.0, spec: vllm 0.24.0" in (out / "report.html").read_text()
    assert [arm.kv_tokens for arm in arms] == [16 * 9000, 16 * 8000]
    assert reported(out, "--all")
    rows = json.loads((out / "summary.json").read_text())["evidence"]
    (room,) = (row for row in rows if row["check"] == "room for context")
    assert room["outcome"] == "caution"
    told = "spec has room for 128,000 tokens of context, steady for 144,000: 11% less"
    assert room["says"] == told
    text = " ".join(capsys.readouterr().out.split())
    assert "Engine of spec, declared besides speculation: synchronous scheduling." in text


def test_the_pod_ends_with_0_once_it_has_measured_and_a_terminal_with_1_where_all_is_withheld(
    endpoint: Endpoint, write_plan: WritePlan, out: Path
) -> None:
    """By the reviewed commands of the pod: another exit would repeat the container and throw the answer away."""
    objects = yaml.safe_load_all((ROOT / "manifests" / "qwen3-32b" / "40-qwen-llmperf.yaml").read_text())
    job = next(one for one in objects if one["kind"] == "Job" and "initContainers" in str(one))
    commands = {one["name"]: one["args"] for one in job["spec"]["template"]["spec"]["initContainers"]}
    endpoint.says, plan = answering(with_wrong(12)), str(write_plan())
    places = {"/plan/plan.json": plan, "/results": str(out)}
    for name in ("run", "repeat"):
        assert main([places.get(word, word) for word in commands[name]]) == 0, name
    assert {one["verdict"] for one in summary(out)["mix"]} == {"withheld"}
    assert main(["run", "--plan", plan, "--out", str(out)]) == 1
    assert main(["report", str(out)]) == 1
