"""After the load: what differing answers are, told by a real server to the real client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from benchmark.__main__ import main
from benchmark.measure import divergence, journal, questions
from benchmark.measure.divergence import DUMMY, MARGIN_NATS, NONE_GIVEN, NOT_GREEDY
from benchmark.measure.progress import Progress
from tests.benchmark.conftest import Captured, plan_content
from tests.benchmark.measure.once import ask_once
from tests.benchmark.writers import END, SURE, WORDS, Writer, Writers

AT = 6
"""The place of the second " the", where the treatment goes on otherwise."""
OTHER = (*WORDS[:AT], " a", " lake")
CHAT = [{"id": "one", "class": "chat", "messages": [{"role": "user", "content": "Go on."}]}]
RAW = [{"id": "one", "class": "raw", "prompt": "Beginning 0"}]
NEAR = {AT: {" the": -0.9, " a": -1.1, **SURE}}
FAR = {AT: {" the": -0.6, " a": -0.6 - MARGIN_NATS - 0.01, **SURE}}

Start = Callable[..., Writers]


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_once(monkeypatch)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server of a baseline and a treatment that writes something else."""
    with ExitStack() as running:

        def start(steady: Writer, spec: Writer | None = None) -> Writers:
            return running.enter_context(Writers(steady=steady, spec=spec or Writer(OTHER)))

        yield start


def run(server: Writers, out: Path, *options: str, **changes: Any) -> int:
    """One prompt, so often as `rounds` says."""
    once = {"prompts": CHAT, "requests": 1, "concurrency": [1], "warmup": 0}
    content = plan_content(**(once | changes))
    for arm in content["arms"]:
        arm["url"] = server.url(arm["name"])
    plan = out.parent / "plan.json"
    plan.write_text(json.dumps(content))
    given = ["--plan", str(plan), "--out", str(out), "--timeout", "5", "--no-sense-check"]
    return main(["run", *given, *options])


def asked(out: Path) -> list[tuple[str, int]]:
    """Which arms were asked for log-probabilities, and how many characters of an answer each was given."""
    lines = map(json.loads, (out / "divergence.jsonl").read_text().splitlines())
    return [(line["arm"], line["given"]) for line in lines if line["kind"] == "asked"]


def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())["losslessness"]
    return found


def case(out: Path) -> tuple[str, str]:
    """The verdict on the one differing pair, and why."""
    one = next(one for one in told(out)["cases"] if one["treatment"] == "spec")
    return one["verdict"], one["why"]


@pytest.mark.parametrize("prompts", [CHAT, RAW], ids=["chat", "completions"])
@pytest.mark.parametrize(("top", "verdict"), [(NEAR, "near-tie"), (FAR, "fault")], ids=["near", "far"])
def test_about_as_likely_is_a_near_tie(start: Start, out: Path, prompts: Any, top: Any, verdict: str) -> None:
    assert run(start(Writer(top=top)), out, prompts=prompts) == 0
    assert case(out) == (verdict, "")
    again = [] if verdict == "near-tie" else [0]
    assert [given for arm, given in asked(out) if arm == "steady"] == [len("Ann saw the old"), *again], (
        "a fault is asked about twice"
    )
    (one,) = told(out)["cases"]
    assert one["tokens"] == [" the", " a"]
    assert one["gap_nats"] == pytest.approx(0.2 if verdict == "near-tie" else MARGIN_NATS + 0.01)
    (treatment,) = told(out)["treatments"]
    assert (treatment["near_ties"], treatment["faults"]) == ((1, 0) if verdict == "near-tie" else (0, 1))
    (cell,) = (c for c in json.loads((out / "summary.json").read_text())["cells"] if c["arm"] == "spec")
    assert cell["output_equality"]["faults"] == treatment["faults"]


def _listing(own: float) -> Writer:
    """A treatment whose server lists its own token, at so much."""
    return Writer(OTHER, top={AT: {**FLAT, " a": own}})


FLAT = {" the": -2.0, " her": -2.1, " his": -2.2}
UNKNOWN = "which tokens were taken is not known"
ENDING = {AT: {" the": -0.7, END: -0.8, **SURE}}
UNLISTED = "the other's token is not among the most likely ones"
VERDICTS: dict[str, tuple[Writer, Writer, str, str]] = {
    "far beyond the list": (Writer(top={AT: {" the": -0.1, **SURE}}), Writer(OTHER), "fault", ""),
    "not listed within the margin": (Writer(top={AT: FLAT}), Writer(OTHER), "cannot tell", UNLISTED),
    "far by its own server": (Writer(top={AT: FLAT}), _listing(-5.0), "fault", ""),
    "near by its own server": (Writer(top={AT: FLAT}), _listing(-2.2), "cannot tell", UNLISTED),
    "made up by its own server": (Writer(top={AT: FLAT}), _listing(1234.0), "cannot tell", UNLISTED),
    "neither goes on from a beginning": (
        Writer(top=NEAR, continues=False),
        Writer(OTHER, continues=False),
        "near-tie",
        "",
    ),
    "a fault that came once": (Writer(top=FAR), Writer(OTHER, again=WORDS), "fault", ""),
    "an end": (Writer(top=ENDING), Writer(WORDS[:AT], top=ENDING, ended=True), "near-tie", ""),
    "an end that no token shows": (Writer(top=NEAR), Writer(WORDS[:AT]), "cannot tell", UNKNOWN),
    "another baseline than before": (
        Writer(top=NEAR, again=("Bob", *WORDS[1:])),
        Writer(OTHER),
        "cannot tell",
        "the baseline did not write the common text again",
    ),
    "other tokens": (
        Writer(top=NEAR),
        Writer((*WORDS[:4], " mi", "ll", " by", " a", " lake")),
        "cannot tell",
        "the two answers are cut into different tokens",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_what_two_answers_show(start: Start, out: Path, name: str) -> None:
    steady, spec, *verdict = VERDICTS[name]
    run(start(steady, spec), out)
    assert list(case(out)) == verdict
    if verdict[0] != "cannot tell":
        assert told(out)["cases"][0]["tokens"] == [" the", END if spec.ended else " a"]


DUMMIES: dict[str, tuple[Writer, str]] = {
    "number of the token": (Writer(top={i: {word: 1234.0 + i} for i, word in enumerate(WORDS)}), DUMMY),
    "zeros": (Writer(top={i: {word: 0.0, " a": 0.0} for i, word in enumerate(WORDS)}), DUMMY),
    "placeholders": (Writer(top={i: {w: -9999.0, " a": -9999.0} for i, w in enumerate(WORDS)}), DUMMY),
    "the same everywhere": (Writer(top={i: {w: -1.0, " a": -1.2} for i, w in enumerate(WORDS)}), DUMMY),
    "not the likeliest": (Writer(top={i: {w: -2.0, "!": -0.2} for i, w in enumerate(WORDS)}), NOT_GREEDY),
    "nothing": (Writer(told=lambda answer: {"choices": [{"index": 0, "logprobs": None}]}), NONE_GIVEN),
    "chosen alone": (Writer(top={i: {word: -0.1} for i, word in enumerate(WORDS)}), NONE_GIVEN),
}


@pytest.mark.parametrize("name", DUMMIES)
def test_log_probabilities_that_are_not_real_tell_nothing(start: Start, out: Path, name: str) -> None:
    writer, why = DUMMIES[name]
    run(start(writer), out)
    assert case(out) == ("cannot tell", why)
    assert [arm for arm, _ in asked(out)] == ["steady"], "nobody is asked twice"


def _raw(text: str, **named: Any) -> Callable[[dict[str, Any]], web.Response]:
    return lambda answer: web.Response(text=text, content_type="application/json", **named)


def _spoilt(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        answer["choices"][0]["logprobs"]["content"][0] |= changes
        return answer

    return spoil


HOSTILE: dict[str, Writer] = {
    "refused": Writer(told=_raw('{"message": "logprobs are not supported"}', status=400)),
    "not JSON": Writer(told=_raw("{")),
    "too long": Writer(told=_raw('"' + "x" * (6 << 20) + '"')),
    "compressed": Writer(told=lambda answer: web.Response(body=b"x", headers={"Content-Encoding": "gzip"})),
    "characters that break a terminal": Writer(told=_spoilt(token="\x1b[2J\ud800")),
    "without an end": Writer(endless=True),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_costs_the_run_nothing(start: Start, out: Path, name: str, capsys: Captured) -> None:
    server = start(HOSTILE[name])
    assert run(server, out) == 0
    records = (out / "requests.jsonl").read_bytes()
    assert case(out)[0] == "cannot tell"
    assert "\x1b" not in capsys.readouterr().out
    before = list(server.asked)
    assert run(server, out) == 0
    assert server.asked == before, "what was answered is not asked again"
    assert (out / "requests.jsonl").read_bytes() == records


@pytest.mark.parametrize(("second", "differing"), [(OTHER, 8), (None, 0)])
def test_the_baseline_is_asked_again_and_its_own_differences_are_the_floor(
    start: Start, out: Path, second: tuple[str, ...] | None, differing: int
) -> None:
    assert run(start(Writer(top=NEAR, second=second)), out, rounds=8) == 0
    itself, (treatment,) = told(out)["baseline"], told(out)["treatments"]
    assert (itself["n_pairs"], itself["differing"], itself["near_ties"]) == (8, differing, differing)
    assert treatment["differing"] == 8
    assert treatment["more_than_baseline"] is (differing == 0)


def test_no_more_is_asked_than_is_said(start: Start, out: Path, capsys: Captured) -> None:
    server = start(Writer(top=NEAR))
    assert run(server, out, "--closer-look", "0", rounds=8) == 0
    assert "answers differ" not in capsys.readouterr().err
    assert not (out / "divergence.jsonl").exists()
    assert run(server, out, "--closer-look", "0.000001", rounds=8) == 0
    assert "stopped looking at differing answers" in capsys.readouterr().err
    given: dict[str, Any] = {"out": out, "timeout_s": 5, "progress": Progress(sys.stderr)}
    asyncio.run(questions.look_closer(journal.read(out), **given, maximum=3, repeats=2))
    assert main(["report", str(out)]) == 0
    assert len(server.asked) == 2 * 3
    assert len(server.seen) == 2 * 8 + 2
    assert told(out)["treatments"][0]["reasons"] == {"not asked": 5}


def test_equal_answers_and_drawn_ones_are_not_asked_about(start: Start, out: Path) -> None:
    server = start(Writer(), Writer())
    run(server, out)
    drawn = start(Writer(), Writer(OTHER))
    run(drawn, out.parent / "drawn", temperature=0.7)
    run(drawn, out.parent / "overridden", extra_body={"temperature": 1})
    assert (server.asked, drawn.asked) == ([], [])
    assert not (out / "divergence.jsonl").exists()
    assert told(out)["treatments"][0]["equal"] == 1
    assert told(out.parent / "drawn") is None


def test_interrupted_it_goes_on_where_it_stopped(start: Start, out: Path) -> None:
    server = start(Writer(top=NEAR))
    run(server, out, rounds=8)
    path, before = out / "divergence.jsonl", told(out)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-5]) + whole[-5][:30])
    requests = len(server.asked) + len(server.seen)
    run(server, out, rounds=8)
    assert len(server.asked) + len(server.seen) == requests + 5
    assert told(out) == before


def test_a_server_that_is_gone_after_the_load_leaves_the_run_as_it_is(out: Path, capsys: Captured) -> None:
    with Writers(steady=Writer(top=NEAR), spec=Writer(OTHER)) as server:
        run(server, out, rounds=8)
    (out / "divergence.jsonl").unlink()
    assert run(server, out, rounds=8) == 0
    said = capsys.readouterr().err
    assert "connect_refused" in said
    assert "repeat the command to continue" in said
    assert told(out)["treatments"][0]["reasons"] == {"not asked": 8}


DAMAGED = (
    b"{",
    b"[]",
    b'{"kind": "asked"}',
    b'{"kind": ["asked"]}',
    b'{"kind": "again", "run": "other", "pair_id": "chat/c2/0000", "started_unix_s": 1, "text": "x"}',
    b"\xff\xfe",
    b'{"kind": "again", "run": 7}',
)


def test_everything_is_made_again_from_the_two_raw_files(start: Start, out: Path) -> None:
    run(start(Writer(top=FAR, second=OTHER)), out, rounds=3)
    path, before = out / "divergence.jsonl", told(out)
    path.write_bytes(b"\n".join((*DAMAGED, path.read_bytes())))
    (out / "summary.json").unlink()
    assert main(["report", str(out)]) == 0
    assert told(out) == before


def test_the_place_to_go_on_from_is_between_words_and_not_far_back() -> None:
    assert questions.beginning("Ann saw the old mill", len("Ann saw the old mi")) == len("Ann saw the")
    assert questions.beginning("a b " + "x" * 60, 60) == 0


def test_five_tokens_that_are_really_as_likely_are_not_taken_for_dummies() -> None:
    """In bfloat16 flat places have exact ties, five in a row too."""
    flat = divergence.WrittenToken(" oak", -3.0, {f" {i}": -3.0 for i in range(4)} | {" oak": -3.0})
    sure = divergence.WrittenToken(" the", -0.1, {" the": -0.1, " a": -4.0})
    assert divergence.unreal([sure, flat]) == ""
    assert divergence.unreal([flat]) == DUMMY
    assert divergence.unreal([sure, sure._replace(top={" the": -0.1, " a": -4.1})]) == ""


def test_tokens_that_spell_the_api_key_are_lost(
    start: Start, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "".join(WORDS[1:4]).strip()
    monkeypatch.setenv("BENCHMARK_API_KEY", key)
    run(start(Writer(top=NEAR)), out)
    lines = [json.loads(line) for line in (out / "divergence.jsonl").read_text().splitlines()]
    steps = ["".join(step[0] for step in line["steps"]) for line in lines if line["kind"] == "asked"]
    assert [text for text in steps if key in text] == []
    assert "the answer repeats the API key" in [line["message"] for line in lines]
