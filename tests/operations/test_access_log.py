"""`prompts --log`: access logs of OpenAI-style requests as prompts with arrival times."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmark.prompt_files import read_file
from operations.__main__ import main
from tests.conftest import ROOT

SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "My secret?"}]
LITELLM: list[dict[str, Any]] = [
    {
        "startTime": at,
        "prompt_tokens": given,
        "completion_tokens": taken,
        "messages": SAID,
        "metadata": {"user_api_key_alias": f"team-{given}"},
    }
    for at, given, taken in ((1763.5, 6, 52), (1766.553, 12, 26), (1764.018, 9, 3))
]
ENVOY: list[dict[str, Any]] = [
    {"start_time": f"2025-08-30T16:51:{at}Z", "genai_tokens_input": given, "genai_tokens_output": taken}
    for at, given, taken in (("37.894", 15, 7), ("38.000", 5, None), ("39.894", 3, 9))
]
NGINX: list[dict[str, Any]] = [
    {"msec": at, "request_time": took, "request_body": body}
    for at, took, body in (
        ("1763800000.500", "0.500", json.dumps({"messages": SAID, "max_tokens": 8})),
        ("1763800009.000", "8.000", json.dumps({"prompt": "Once", "max_completion_tokens": 4})),
        ("1763800009.000", "0.001", "-"),
    )
]
Captured = pytest.CaptureFixture[str]


def jsonl(entries: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, entries))


def litellm(**change: object) -> str:
    return jsonl([{**LITELLM[0], **change}])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "gateway.log"


def converted(log: Path, text: str, *options: str) -> int:
    log.write_text(text)
    return main(["prompts", "--log", str(log), *options])


@pytest.mark.parametrize(
    ("text", "format_", "expected"),
    [
        (jsonl(LITELLM), "LiteLLM log", [(0.0, 6, 52), (0.518, 9, 3), (3.053, 12, 26)]),
        (json.dumps(LITELLM), "LiteLLM log", [(0.0, 6, 52), (0.518, 9, 3), (3.053, 12, 26)]),
        (jsonl(ENVOY), "Envoy AI Gateway access log", [(0.0, 15, 7), (2.0, 3, 9)]),
    ],
    ids=["LiteLLM", "a list", "Envoy"],
)
def test_times_and_lengths_of_a_log_are_kept_and_texts_are_not(
    log: Path, capsys: Captured, text: str, format_: str, expected: list[tuple[float, int, int]]
) -> None:
    assert converted(log, text) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    words = [len(one["messages"][0]["content"].split()) for one in lines]
    assert [(one["at_s"], n, one["max_tokens"]) for one, n in zip(lines, words, strict=True)] == expected
    assert all(one["made_up"] and one["class"] == "gateway" for one in lines)
    assert "secret" not in out
    assert f" in {expected[-1][0]:g} s, {format_}" in err
    assert "texts are made up, so a replay cannot tell how much drafting helps your traffic" in err
    assert ("left out: 1 without an answer" in err) == (text == jsonl(ENVOY))


def test_a_log_of_nginx_is_dated_back_to_when_its_requests_came(log: Path, capsys: Captured) -> None:
    assert converted(log, jsonl(NGINX)) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["at_s"], second["at_s"]) == (0.0, 1.0)
    assert (first["max_tokens"], second["max_tokens"]) == (8, 4)
    assert len(first["messages"][0]["content"]) == len("Be brief.\nMy secret?")


def test_texts_are_made_up_by_the_seed_or_kept(log: Path, capsys: Captured, tmp_path: Path) -> None:
    made_up = []
    for seed in ("1", "1", "2"):
        assert converted(log, jsonl(LITELLM), "--seed", seed) == 0
        made_up.append(capsys.readouterr().out)
    assert made_up[0] == made_up[1] != made_up[2]
    assert converted(log, jsonl(LITELLM), "--texts", "--class", "metadata.user_api_key_alias") == 0
    kept, err = capsys.readouterr()
    assert "made up" not in err
    for texts, marked in ((made_up[0], True), (kept, False)):
        (tmp_path / "traffic.jsonl").write_text(texts)
        read = read_file(tmp_path / "traffic.jsonl", name="traffic.jsonl")
        assert not read.problems
        assert all(content.get("made_up", False) is marked for _, content in read.lines)
    lines = [json.loads(line) for line in kept.splitlines()]
    assert [(one["class"], one["messages"]) for one in lines] == [(f"team-{n}", SAID) for n in (6, 9, 12)]


TEXT = "127.0.0.1 - - [22/Nov/2026] GET /\n" * 3
TOO_LONG = "`prompt_tokens` is 1000000000; give times as seconds"
REFUSED: list[tuple[str, tuple[str, ...]]] = [
    ("gateway.log: holds no prompt; give JSON lines or a JSON list", ("",)),
    ("is not JSON", (TEXT,)),
    ("is not a known log: its first entry has prompt; known by two keys each", ('{"prompt": "x"}\n' * 30,)),
    ("gateway.log: is not JSON", ("{\n{",)),
    (f"line 1 of gateway.log: {TOO_LONG}", (litellm(prompt_tokens=10**9),)),
    ("line 1 of gateway.log: `startTime` is 'soon'; give times as seconds", (litellm(startTime="soon"),)),
    ("is not JSON", (litellm(startTime=float("nan")),)),
    ("none of its 2 entries has a length of prompt and answer", (jsonl([ENVOY[1]] * 2),)),
    ("has no text of its request; leave --texts out", (litellm(messages=None), "--texts")),
    ("has no `user.team`; name a key that entries have", (litellm(), "--class", "user.team")),
    ("`user` is 1.5; give printable text", (litellm(user=1.5), "--class", "user")),
]


@pytest.mark.parametrize(("words", "given"), REFUSED)
def test_a_log_that_cannot_be_converted_gives_one_clear_line_for_each_problem(
    log: Path, capsys: Captured, words: str, given: tuple[str, ...]
) -> None:
    assert converted(log, *given) == 2
    out, err = capsys.readouterr()
    assert (out, words in err) == ("", True), err
    assert len(err.splitlines()) <= 3


LEFT_OUT: list[tuple[str, int, tuple[str, ...]]] = [
    ("line 4 of gateway.log: is not JSON", 3, (jsonl(LITELLM) + '\n{"startTi',)),
    ("line 1 of gateway.log: is not JSON", 3, ('h": 6}\n' + jsonl(LITELLM),)),
    ("line 4 of gateway.log: has no text", 3, (f"{jsonl(LITELLM)}\n{litellm(messages=None)}", "--texts")),
    ("`completion_tokens` is 2097152;", 3, (f"{jsonl(LITELLM)}\n{litellm(completion_tokens=1 << 21)}",)),
    ("line 2 of gateway.log: has no `team`", 1, (f"{litellm(team='a')}\n{litellm()}", "--class", "team")),
]


@pytest.mark.parametrize(("words", "kept", "given"), LEFT_OUT)
def test_an_entry_that_cannot_be_used_is_left_out_counted_and_named(
    log: Path, capsys: Captured, words: str, kept: int, given: tuple[str, ...]
) -> None:
    assert converted(log, *given) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == kept
    assert f"{kept} prompt{'s' * (kept > 1)} in " in err
    assert "left out: 1 that cannot be used" in err
    assert words in err.splitlines()[1]


HUGE: dict[str, Callable[[], tuple[int, Iterable[str]]]] = {
    "long prompts": lambda: (4, [litellm(prompt_tokens=1 << 20, completion_tokens=9) + "\n"] * 20_000),
    "many lines": lambda: (
        91_476,
        (litellm(startTime=n, messages=0, metadata=0) + "\n" for n in range(300_000)),
    ),
    "many broken lines": lambda: (1, [litellm(), *['\n{"startTime": 1'] * 300_000]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGE)
def test_of_a_huge_log_as_much_is_read_as_a_run_takes(log: Path, name: str) -> None:
    kept, lines = HUGE[name]()
    with log.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    gib = 2**30
    done = subprocess.run(
        [sys.executable, "-m", "operations", "prompts", "--log", str(log)],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (gib, gib)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout) <= 16 * 2**20
    assert done.stdout.count(b"\n") == kept
    assert (b"only the beginning of the log was read" in done.stderr) == (name != "many broken lines")
    assert len(done.stderr) < 2000


def test_without_a_log_its_options_are_wrong_and_files_are_printed(log: Path, capsys: Captured) -> None:
    log.write_text(jsonl([{"text": "Hello"}]))
    assert main(["prompts", str(log)]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": "gateway-1", "class": "gateway", "prompt": "Hello"}
    assert main(["prompts", str(log), "--texts"]) == 2
    assert "--texts and --class go with --log" in capsys.readouterr().err
