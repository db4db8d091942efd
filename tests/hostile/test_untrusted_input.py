"""Whatever comes through a door: it is read, or refused in short lines that a terminal shows and does not obey."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from infra.deployment_file import read_deployment
from infra.pipeline.pipeline_file import read_pipeline
from tests.benchmark.conftest import Captured, plan_content
from tests.benchmark.records import answered, block, raw_run, store, summary_of
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.errors import PlanError, ResultsError
from trnspec.benchmark.measure.endpoints import counters_in
from trnspec.benchmark.measure.journal import FILE_NAME, read
from trnspec.benchmark.measure.records import MAX_TOKENS, to_json
from trnspec.benchmark.measure.stream import SseParser, StreamFault, StreamTally
from trnspec.benchmark.plan import from_dict, load
from trnspec.benchmark.plan_limits import url_problem
from trnspec.benchmark.prompt_files import read_file
from trnspec.core.findings import Misuse
from trnspec.experiment import load as load_experiment

SOUND: dict[str, Any] = {"chunk_s": (0.1, 0.2, 0.3), "chunk_tokens": (1, 3, 4), "completion_tokens": 8}
ODD_TEXT = st.sampled_from(
    ["", "\x1b[2J\nall is well", "\ud800", "\u202egnp", "x" * 100_000, "\x00", ":", "a"]
)
NUMBERS = (
    st.integers(-(10**30), 10**30) | st.floats() | st.sampled_from([10**400, 2**63, -1, 0, 1e308, 5e-324])
)
DEEP = json.loads("[" * 300 + '"deep"' + "]" * 300)
ODD = st.recursive(
    st.none() | st.booleans() | NUMBERS | ODD_TEXT | st.text(max_size=20) | st.just(DEEP),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
"""Any JSON, and NaN."""
quickly = settings(
    max_examples=150, deadline=30_000, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
FOLDER = Path(mkdtemp(prefix="hostile-"))


def clean(line: str, most: int = 5000) -> bool:
    return line.isprintable() and len(line) < most


def written(name: str, content: Any) -> Path:
    path = FOLDER / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refused_or_a_plan(path: Path) -> None:
    try:
        plan = load(path)
    except PlanError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert clean(refusal)


PLAN = plan_content()
WITHIN = {
    "arms": [*PLAN["arms"][0], "usd_per_hour", "also_changes", "baseline"],
    "prompts": ["id", "class", "prompt", "messages", "max_tokens"],
}
PLACES: list[tuple[str, ...]] = [
    *((key,) for key in (*PLAN, "rate", "slo", "unknown")),
    *((key, field) for key, fields in WITHIN.items() for field in fields),
]


@quickly
@given(st.sampled_from(PLACES), ODD)
@example(("prompts",), [5] * 10_000)
@example(("prompts",), [{"id": "a", "class": "b", "prompt": "c"}] * 110_000)
@example(("prompts", "messages"), [{"role": "user", "content": "x", "n": math.inf}])
@example(("concurrency",), [1] * 100_000)
def test_any_value_in_a_plan(place: tuple[str, ...], value: Any) -> None:
    content = plan_content()
    within = content[place[0]][0] if len(place) == 2 else content
    within[place[-1]] = value
    refused_or_a_plan(written("plan.json", content))


@quickly
@given(st.binary(max_size=200) | ODD)
@example(b"[" * 1_000_000)
@example(b" " * (17 << 20))
@example({f"\x1b[{i}m": i for i in range(10_000)})
def test_any_file_as_a_plan(content: Any) -> None:
    refused_or_a_plan(written("plan.json", content))


OPTIONS = {
    "--concurrency": ("0", "-1", "1e3", "9" * 5000, "1000000000", "NaN", "٣", ""),
    "--requests": ("0", "9" * 400, "1000000000000"),
    "--mix": ("chat=0", "chat=nan", "chat", "nobody=1"),
    "--questions": ("", "nowhere", "/dev/zero"),
    "--api-key-env": ("spec=", "spec=A B", "spec=NO_SUCH_VARIABLE", "nobody=HOME"),
    "--rate": ("0", "nan", "inf", "1e-300", "1e300"),
    "--max-error-rate": ("nan", "-1", "2"),
    "--model": ("\x1b[2J", "x" * 1000),
    "--extra-body": ("[]", "{", '{"a": NaN}', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500),
    "--slo": ("tpot_s=nan", "tpot_s=1e300", "x=1"),
    "--speculative-tokens": ("spec=-1", "spec=1000000000000", "spec=nan"),
    "--usd-per-hour": ("spec=nan", "spec=1e300"),
    "--arm": ("spec=http://me:secret@host/v1", "spec=http://host/v1?key=secret", "spec=\x1b[2J"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_absurd_option_is_refused(option: str, capsys: Captured) -> None:
    plan = written("plan.json", PLAN)
    for value in OPTIONS[option]:
        with pytest.raises(SystemExit, match=r"^2$"):  # also where it cannot be read
            sys.exit(main(["run", "--plan", str(plan), "--out", str(FOLDER / "out"), option, value]))
        told = capsys.readouterr().err
        assert all(clean(line) for line in told.splitlines())
        assert "secret" not in told
        assert not (FOLDER / "out").exists()


@pytest.mark.parametrize(
    "words",
    ["gate r --baseline r --max-slower nan", "advise r --mix a=nan", "results --sort no"]
    + [f"advise --acceptance f --step-times {times}" for times in ("0=nan,7=1", "0=1", "0=0,7=1", "x=1,0=1")],
)
def test_an_absurd_option_of_a_recorded_run_is_one_line(words: str, capsys: Captured) -> None:
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert clean(line)


HOSTS = st.text("abc.-_[]:%@ 109\\/?#äß²\u2028\ud800", max_size=9)


@settings(quickly, max_examples=2000)
@given(
    HOSTS,
    st.sampled_from(["http", "https", "ftp", "javascript", ""]),
    st.sampled_from(["80", "0", "99999", "x"]),
)
@example("me:secret@host", "http", "80")
def test_any_address_of_an_arm(host: str, scheme: str, port: str) -> None:
    """One that is taken is one to the HTTP client too."""
    from yarl import URL

    url = f"{scheme}://{host}:{port}/v1"
    problem = url_problem(url)
    assert URL(url).host if problem is None else clean(problem) and "secret" not in problem
    for usual in ("http://münchen.example", "http://a_b.svc:8000", "http://[::1]:8000", "https://h"):
        assert url_problem(f"{usual}/v1") is None


KEYS = [
    "id",
    "class",
    "prompt",
    "messages",
    "text",
    "turns",
    "conversations",
    "body",
    "max_tokens",
    "tokens",
]
ENTRY = st.fixed_dictionaries({}, optional={key: ODD | st.sampled_from(["one", 1]) for key in KEYS})
CONTENT = (
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: f"prompt,class\n{text}".encode("utf-8", "replace"))
    | (st.lists(ENTRY, max_size=3) | ENTRY).map(lambda entries: json.dumps(entries).encode())
    | st.lists(ENTRY, max_size=3).map(lambda entries: "\n".join(map(json.dumps, entries)).encode())
)


@settings(quickly, max_examples=300)
@given(CONTENT)
@example(b"[" * 100_000)
@example(b"x" * 5_000_000)
@example(b'{"prompt": "p", "max_tokens": ' + b"9" * 5000 + b"}")
def test_any_file_of_prompts(content: bytes) -> None:
    file = read_file(path := written("mine.jsonl", content), name=path.name)
    assert all(clean(problem.line(), 2000) for problem in file.problems)
    assert len(file.problems) < 50
    if not file.problems:
        again = written("again.jsonl", "\n".join(json.dumps(line) for _, line in file.lines).encode())
        assert [line for _, line in read_file(again, name="again").lines] == [line for _, line in file.lines]


@cache
def sound() -> tuple[Path, bytes]:
    """A run of six pairs, in which the treatment is 3.5 times as fast."""
    steady = [answered("steady", pair) for pair in range(6)]
    folder = store(raw_run(*steady, *(answered("spec", pair, **SOUND) for pair in range(6))), FOLDER / "run")
    return folder, (folder / FILE_NAME).read_bytes()


COUNTERS = {"vllm:spec_decode_num_drafts_total": 1.0}
LINES: dict[str, dict[str, Any]] = {
    "run": to_json(raw_run().sessions[0]),
    "request": to_json(answered("spec", 99, **SOUND)),
    "block": to_json(block(duration_s=10.0, counters_before=COUNTERS, counters_after=COUNTERS)),
}
FIELDS = [(kind, field) for kind, line in LINES.items() for field in line]


def the_figures_are_those_of_the_sound_run(folder: Path) -> None:
    raw = read(folder)
    summary = summary_of(raw)
    json.dumps(summary, allow_nan=False)
    assert clean(raw.unusable_lines)
    (found,) = (one for one in summary["comparisons"] if (one["class"], one["metric"]) == ("chat", "tpot_s"))
    assert found["ratio"] == pytest.approx(3.5)


@settings(quickly, max_examples=300)
@given(st.sampled_from(FIELDS), ODD)
@example(("request", "chunk_s"), [0.1, 1e308, 1.7e308])
@example(("request", "chunk_s"), [0.1, 0.3, 0.2])
@example(("request", "chunk_tokens"), [1, 3, 9])
@example(("request", "chunk_tokens"), [1, 3, 3, 1])
@example(("request", "completion_tokens"), 14)
@example(("request", "completion_tokens"), 10**400)
@example(("request", "ttft_s"), -0.1)
@example(("request", "e2e_s"), 0.05)
@example(("request", "arm"), "fast")
@example(("request", "concurrency"), 3)
@example(("request", "round"), 2)
@example(("request", "pair_id"), "chat/c2/0003")
@example(("request", "kind"), "cow")
@example(("run", "run"), "../../x")
@example(("run", "provenance"), "emulated")
def test_any_value_in_a_line_of_a_journal(place: tuple[str, str], value: Any) -> None:
    """A request with impossible numbers is a failure; another line that cannot be used is left out."""
    (folder, whole), (kind, field) = sound(), place
    line = json.dumps(LINES[kind] | {field: value}).encode()
    (folder / FILE_NAME).write_bytes(whole + line + b"\n")
    the_figures_are_those_of_the_sound_run(folder)


@quickly
@given(st.binary(max_size=200) | ODD.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 1_000_000)
@example(b'{"kind": ' + b"1" * 5000 + b"}")
@example(b"\xef\xbb\xbf" + json.dumps(LINES["request"]).encode())
@example(json.dumps(LINES["request"]).encode()[:200])
def test_any_line_in_a_journal_is_left_out_and_named(line: bytes) -> None:
    folder, whole = sound()
    line = line.replace(b"\n", b" ")
    (folder / FILE_NAME).write_bytes(line + b"\n" + whole)
    the_figures_are_those_of_the_sound_run(folder)
    assert read(folder).unusable_lines.startswith(
        f"{FILE_NAME}: 1 line cannot be used and is left out: line 1 ("
    )
    (folder / FILE_NAME).write_bytes(line + b"\n")
    with pytest.raises(ResultsError, match="holds no run") as error:
        read(folder)
    assert clean(str(error.value))


def test_a_journal_that_is_not_a_file_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / FILE_NAME).symlink_to("/dev/zero")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / FILE_NAME)
    for name in ("zero", "pipe", "nothing"):
        assert main(["report", str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert clean(line)


EVENT = st.fixed_dictionaries(
    {},
    optional={
        "choices": ODD | st.just([{"index": 0, "delta": {"content": "a"}}]),
        "usage": ODD | st.fixed_dictionaries({}, optional={"completion_tokens": ODD, "prompt_tokens": ODD}),
        "metrics": ODD
        | st.fixed_dictionaries({"speculative_decoding": st.dictionaries(st.text(max_size=9), ODD)}),
        "error": ODD,
    },
)
WORD = {"choices": [{"index": 0, "delta": {"content": "word"}}]}
NAMES = {
    "",
    "malformed",
    "implausible_usage",
    "stream_error",
    "too_large",
    "no_done",
    "zero_tokens",
    "no_finish_reason",
}


@quickly
@given(st.lists(EVENT | ODD | st.just(WORD), max_size=5), st.binary(max_size=50))
@example([WORD, {"usage": {"completion_tokens": 41}}], b"")
@example([WORD, {"usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -1}}}], b"")
@example([WORD, {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 999}}}], b"")
@example([WORD], b"data: x\n" * 400_000)
def test_any_events_of_a_stream(events: list[Any], more: bytes) -> None:
    """They are an answer whose numbers can be true, or a fault with a name, in whatever packets they come."""
    sent = (
        b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        + more
        + b'\n\ndata: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'
        + b"\n\ndata: [DONE]\n\n"
    )
    tally, parser = StreamTally(40), SseParser()
    size = 7 if len(sent) < 5000 else 100_000
    try:
        for at in range(0, len(sent), size):
            for data in parser.feed(sent[at : at + size]):
                tally.take(data, 1.0 + at)
        output = tally.reply()
    except StreamFault as error:
        fault = error.name
    else:
        fault = ""
    assert fault in NAMES
    if fault:
        return
    # pyrefly: ignore[unbound-name]  # without a fault there is one
    assert output.completion_tokens is None or 1 <= output.completion_tokens <= 40
    assert output.chunk_tokens is None or sum(output.chunk_tokens) == output.completion_tokens
    assert all(
        count is None or 0 <= count <= MAX_TOKENS for count in (output.prompt_tokens, output.cached_tokens)
    )
    json.dumps(output.spec_stats, allow_nan=False)
    (output.text or "").encode()


METRIC = st.sampled_from(["vllm:spec_decode_num_drafts_total", "vllm:generation_tokens_total"])
VALUE = st.floats().map(str) | st.sampled_from(["+Inf", "nan", "many", "1" * 5000, "-1", "1e300"])


@quickly
@given(st.lists(st.tuples(METRIC, st.sampled_from(["", '{position="0"}', '{a="']), VALUE)), st.text())
def test_any_metrics_of_a_server(lines: list[tuple[str, str, str]], more: str) -> None:
    text = "\n".join([*(f"{name}{labels} {value}" for name, labels, value in lines), more])
    for value in (counters_in(text) or {}).values():
        assert 0 <= value <= 1e18


YAML_READERS: tuple[Callable[[Path], object], ...] = (load_experiment, read_deployment, read_pipeline)
YAML = {
    "not UTF-8": b"admins: \xff\xfe\n",
    "an alias that contains itself": b"admins: &a [*a]\n",
    "a MiB and more": b"#" * (2**20 + 1),
    "keys that clear the screen": b'version: 1\n"\\e[2J\\r\\nforged: fine": 1\n',
    "two documents": b"name: a\n---\nname: b\n",
    "a merge of itself": b"a: &a\n  <<: *a\n",
    "nested mappings": b"{a: " * 500 + b"}" * 500,
    "a Python object": b"name: !!python/object/apply:os.system [id]\n",
    "a number of many digits": b"? 0x" + b"F" * 5_000 + b"\n: 1\n",
    "a list as a key": b"? [a, b]\n: 1\n",
    "aliases that mean much": b"a: &a [%s]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c]\n"
    % (b"1," * 5000),
    "sexagesimal of 300,000 places": b"version: 1" + b":59" * 300_000,
    "90,000 unknown keys": b"\n".join(b"k%d: 1" % number for number in range(90_000)),
}
NO_FILES = ("/dev/zero", "/dev/null", ".", "nowhere.yaml", "a\0b", "x" * 300)


@pytest.mark.parametrize("case", [*YAML, *NO_FILES])
def test_any_yaml(case: str, tmp_path: Path) -> None:
    path = tmp_path / ("a\x1b[2J.yaml" if case in YAML else case)
    if case in YAML:
        path.write_bytes(YAML[case])
    for reader in YAML_READERS:
        began = time.process_time()
        with pytest.raises(Misuse) as refused:
            reader(path)
        assert time.process_time() - began < 5, "it took 17 s once"
        assert 1 <= len(refused.value.lines) <= 101
        assert all(clean(line, 2000) for line in refused.value.lines)
