"""Journals with lines that nobody wrote on purpose: each reader leaves them out, says so, and computes from the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure import journal
from benchmark.measure.journal import FILE_NAME
from benchmark.measure.records import RequestRecord, to_json
from benchmark.show.publishing import Publisher
from tests.benchmark.records import answered, block, raw_run, store
from tests.hostile.conftest import SOUND

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**32,
    10**400,
    1.5,
    -1e308,
    "@1e400",
    "@NaN",
    "",
    "elsewhere",
    "\x1b[2J\n",
    "\ud800",
    "x" * 100_000,
    [],
    [1, "2", None],
    [-1, 1, 2],
    [10**400],
    {},
    {"a": {"b": [1e300]}},
    "@" + "[" * 300 + "]" * 300,
    "@" + "[" * 100_000,
]
"""What stands in a field; after an @ comes JSON as it is."""
BLOCK = block(
    duration_s=10.0,
    counters_before={"vllm:spec_decode_num_drafts_total": 1.0},
    counters_after={"vllm:spec_decode_num_drafts_total": 2.0},
)
OPENING = raw_run().sittings[0]
KINDS: dict[str, dict[str, Any]] = {
    "run": to_json(OPENING),
    "request": to_json(answered("spec", 99, **SOUND)),
    "block": to_json(BLOCK),
}


def append(folder: Path, *lines: bytes) -> None:
    with (folder / FILE_NAME).open("ab") as file:
        file.writelines(line + b"\n" for line in lines)


def _command(verb: str, folder: Path) -> list[str]:
    more = {"compare": [str(folder)], "gate": ["--baseline", str(folder)], "publish": ["--namespace", "n"]}
    return [verb, str(folder), *more.get(verb, [])]


def read_by_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the verbs say on standard error, after each has read the journal; and the figures are those of the sound run."""
    told = ""
    for verb in ("report", "advise", "compare", "gate"):
        code = main(_command(verb, folder))
        said = capsys.readouterr()
        assert code in (0, 1), said.err
        assert "\x1b" not in said.out + said.err
        assert all(len(line) < 1000 for line in said.err.splitlines())
        told += said.err
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    chat = [
        found for found in summary["comparisons"] if (found["class"], found["metric"]) == ("chat", "tpot_s")
    ]
    assert [found["ratio"] for found in chat] == [pytest.approx(3.5)]
    spec = next(cell for cell in summary["cells"] if (cell["arm"], cell["class"]) == ("spec", "chat"))
    assert spec["acceptance"]["tokens_per_step"] == pytest.approx(3.5)
    cloud = SimpleNamespace(meta=SimpleNamespace(endpoint_url="x"), put_metric_data=lambda **_: {})
    Publisher(folder, "n", cloud).publish(journal.read(folder))
    kept = {(one.pair_id, one.arm) for one in journal.read(folder).requests}
    assert {("chat/c2/0000", "spec"), ("chat/c2/0005", "steady")} <= kept
    return told


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, line in KINDS.items() for field in line])
def test_no_value_of_a_field_stops_a_reader_or_changes_a_figure(
    kind: str, field: str, sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = {key: value for key, value in KINDS[kind].items() if key != field}
    lines = [
        without | ({"pair_id": f"chat/c2/1{n:03d}"} if kind == "request" else {}) for n in range(len(VALUES))
    ]
    lines = [line | {field: value} for line, value in zip(lines, VALUES, strict=True)] + [without] * 2
    if field == "chunk_tokens":  # without them an answer is a sound one, and `advise` says that it needs them
        lines = [line for line in lines if line.get(field) is not None]
    append(sound, *map(_written, lines))
    told = read_by_all(sound, capsys)
    harmless = {"nonce", "finish_reason", "text", "text_sha256", "message", "token_source"}
    assert f"{FILE_NAME}: " in told or field in harmless, "what is left out is said"


def _written(content: dict[str, Any]) -> bytes:
    """A line; a text that begins with @ is written as it is, without quotes."""
    parts = (
        f"{json.dumps(key)}:{value[1:] if isinstance(value, str) and value.startswith('@') else json.dumps(value)}"
        for key, value in content.items()
    )
    return ("{" + ",".join(parts) + "}").encode()


def _request(**changes: Any) -> bytes:
    return json.dumps(KINDS["request"] | changes).encode()


LINES: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "an object": b"{}",
    "half a line": _request()[:200],
    "two lines that ran together": _request()[:200] + _request(),
    "a byte order mark": b"\xef\xbb\xbf" + _request(),
    "invalid UTF-8": _request().replace(b"abc123", b"\xff\xfe"),
    "nested deeply": b"[" * 1_000_000,
    "a number of 5,000 digits": b'{"kind": ' + b"1" * 5000 + b"}",
    "another kind": _request(kind="cow"),
    "another run": _request(run="r2"),
    "an arm that the plan does not have": _request(arm="fast", pair_id="chat/c2/0009"),
    "a class that the plan does not have": _request(class_="x", **{"class": "poems"}),
    "a load that the plan does not have": _request(concurrency=3),
    "a rate that the plan does not have": _request(concurrency=None, rate_per_s=3.0),
    "a round that the plan does not have": _request(round=2),
    "a request that is there already": _request(pair_id="chat/c2/0003"),
    "an error with a name to act on": _request(error="\x1b[31mred", message="\x1b]0;t\x07"),
    "a sitting of another plan": json.dumps(
        KINDS["run"] | {"plan": {**OPENING.plan.to_dict(), "seed": 7}, "sitting": 2}
    ).encode(),
    "an emulated sitting": json.dumps(KINDS["run"] | {"provenance": "emulated", "sitting": 2}).encode(),
    "a run id that leaves the folder": json.dumps(KINDS["run"] | {"run": "../../x"}).encode(),
    "more than 64 MiB": b'{"kind": "request", "text": "' + b"x" * (64 << 20) + b'"}',
}
COUNT_AFTER_OTHERS = ("a request that is there already", "a sitting of another plan", "an emulated sitting")
"""What is wrong with these is what came before them."""


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_is_not_a_record_is_left_out_and_named(
    case: str, sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sound / FILE_NAME
    line, whole = LINES[case] + b"\n", path.read_bytes()
    last = case in COUNT_AFTER_OTHERS
    path.write_bytes(whole + line if last else line + whole)
    told = read_by_all(sound, capsys)
    number = len(whole.splitlines()) + 1 if last else 1
    assert f"{FILE_NAME}: 1 line cannot be used and is left out: line {number} (" in told


def test_lines_that_are_left_out_are_told_everywhere_and_an_older_journals_credentials_nowhere(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sound / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"http://127", b"http://me:secret@127"))
    append(sound, b"{}", b"[]")
    assert main(["report", str(sound)]) in (0, 1)
    assert "2 lines cannot be used and are left out" in " ".join(capsys.readouterr().out.split())
    warnings = json.loads((sound / "summary.json").read_text())["run"]["warnings"]
    assert "2 lines cannot be used" in str(warnings)
    read_by_all(sound, capsys)
    for written in sound.rglob("*"):
        if written.is_file() and written.name != FILE_NAME:
            assert b"secret" not in written.read_bytes(), written


WITHOUT_A_RUN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "one line that is not whole": lambda whole: whole[:50],
    "binary": lambda _: bytes(range(256)) * 100 + b"\n",
    "requests alone": lambda whole: b"".join(whole.splitlines(keepends=True)[1:]),
    "a plan that is not one": lambda whole: whole.replace(b'"baseline":"steady"', b'"baseline":5'),
    "a plan whose arms are numbers": lambda whole: whole.replace(b'"arms":[', b'"arms":[1,[2],'),
}


@pytest.mark.parametrize("verb", ["report", "advise", "compare", "gate", "publish"])
@pytest.mark.parametrize("case", WITHOUT_A_RUN)
def test_a_journal_without_a_run_is_refused_in_one_line(
    case: str, verb: str, sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sound / FILE_NAME
    path.write_bytes(WITHOUT_A_RUN[case](path.read_bytes()))
    assert main(_command(verb, sound)) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "holds no run" in told
    path.unlink()
    assert main(_command(verb, sound)) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "No such file" in told


def test_the_page_of_a_run_at_the_edges_of_what_is_believed_is_written(tmp_path: Path) -> None:
    edges: list[RequestRecord] = []
    for pair in range(8):
        edges.append(answered("steady", pair, chunk_s=(0.0, 1e-6, 9e6), started_unix_s=0))
        edges.append(answered("spec", pair, chunk_s=(1e-6, 1e-6, 2e-6), started_unix_s=9e10))
    store(raw_run(*edges), tmp_path)
    assert main(["report", str(tmp_path)]) in (0, 1)
    assert json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)["comparisons"]


@pytest.mark.parametrize("kind", ["a pipe", "a device without an end"])
def test_a_journal_that_is_not_a_file_is_refused_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / FILE_NAME
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    commands = [_command(verb, tmp_path) for verb in ("report", "advise", "publish")]
    for command in commands:
        assert main(command) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert "not a regular file" in told
