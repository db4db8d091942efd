"""Plans, options and addresses that nobody would write on purpose: each is refused in short, clean lines, and soon."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import string
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from time import process_time
from typing import Any
from unittest.mock import create_autospec

import aiohttp
import pytest

from benchmark.__main__ import main
from benchmark.limits import url_problem
from benchmark.measure import journal
from tests.benchmark.conftest import WritePlan, plan_content
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.measure.test_run import lose, nothing_is_lost_or_there_twice
from tests.conftest import ROOT

Captured = pytest.CaptureFixture[str]
BENCHMARK = (sys.executable, "-m", "benchmark")
ABSURD: dict[str, Any] = {
    "negative": "-1",
    "10^400": "1" + "0" * 400,
    "5,000 digits": "1" * 5000,
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "1e400": "1e400",
    "1e400 in an object": '{"n": [1e400]}',
    "1e400 in a message": '[{"role": "user", "content": "x", "n": 1e400}]',
    "2^63": str(2**63),
    "a trillion": "1000000000000",
    "true": "true",
    "text": '"many"',
    "escapes": '"\\u001b[2J\\nbenchmark run: all is well"',
    "half a surrogate": '"\\ud800"',
    "a list": "[[[1]]]",
    "a deep list": "[" * 900 + "]" * 900,
    "a very deep list": "[" * 100_000 + "]" * 100_000,
    "a long text": '"' + "x" * 1_000_000 + '"',
    "many numbers": "[" + "1," * 100_000 + "1]",
}
KEYS = """
concurrency requests warmup seed max_tokens temperature rate rounds duration_s schema experiment model baseline arms extra_body
simultaneous slo objective prompts unknown
arms.name arms.url arms.speculative_tokens arms.max_tokens_per_step arms.usd_per_hour
prompts.id prompts.class prompts.messages prompts.max_tokens prompts.prompt
"""
FINE = {
    *(("model", "text"), ("simultaneous", "true"), ("experiment", "text"), ("seed", "a trillion")),
    *(
        (f"{key}", what)
        for key in ("prompts.id", "prompts.class", "arms.name", "prompts.prompt")
        for what in ("text", "half a surrogate", "escapes", "a long text")
    ),
}
"""What may stand there."""


def refused(plan: Path, capsys: Captured, *options: str) -> str:
    """What a run says that does not begin."""
    began = process_time()
    words = ["--plan", str(plan), "--out", str(plan.parent / "out"), "--no-sense-check", *options]
    assert main(["run", *words]) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert len(told) < 5000
    assert not (plan.parent / "out").exists()
    assert process_time() - began < 20
    return told


def refused_in_one_line(plan: Path, capsys: Captured) -> None:
    (told,) = refused(plan, capsys).splitlines()
    assert told.isprintable()


@pytest.mark.parametrize("key", KEYS.split())
def test_an_absurd_value_in_a_plan_is_refused_in_one_line(key: str, tmp_path: Path, capsys: Captured) -> None:
    content: dict[str, Any] = plan_content()
    section, _, inner = key.partition(".")
    if inner:
        content[section][0][inner] = "HERE"
    else:
        content[key] = "HERE"
    for what, value in ABSURD.items():
        if (key, what) not in FINE:
            plan = tmp_path / f"{what}.json"
            plan.write_text(json.dumps(content).replace('"HERE"', value))
            refused_in_one_line(plan, capsys)


FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "UTF-16": json.dumps(plan_content()).encode("utf-16"),
    "a list": b"[]",
    "nested deeply": b"[" * 1_000_000,
    "longer than 16 MiB": b" " * (17 << 20),
    "ten thousand unknown keys": json.dumps({f"\x1b[{i}m": i for i in range(10_000)}).encode(),
    "ten thousand wrong prompts": json.dumps(plan_content(prompts=[5] * 10_000)).encode(),
    "a prompt a hundred thousand times": json.dumps(
        plan_content(prompts=[{"id": "a", "class": "b", "prompt": "c"}] * 100_000)
    ).encode(),
    "a message without a role": json.dumps(
        plan_content(prompts=[{"id": "a", "class": "b", "messages": [{}]}])
    ).encode(),
}


def test_a_file_that_is_not_a_plan_is_refused_in_one_line(tmp_path: Path, capsys: Captured) -> None:
    for case, content in FILES.items():
        (tmp_path / case).write_bytes(content)
    (tmp_path / "without an end").symlink_to("/dev/zero")
    for case in (*FILES, "without an end", "missing", "\x1b[2J\nmissing"):
        refused_in_one_line(tmp_path / case, capsys)


def test_messages_without_role_or_content_are_sent_as_they_are(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    messages = [{}, {"role": "user"}, {"role": "user", "content": "One?"}]
    plan = write_plan(prompts=[{"id": "a", "class": "b", "messages": messages}], requests=1, warmup=0)
    assert main(["run", "--plan", str(plan), "--out", str(tmp_path / "out"), "--no-sense-check"]) == 0
    assert endpoint.seen[0].body["messages"][:2] == messages[:2]


OPTIONS = {
    "--concurrency": ("0", "-1", "1e3", "9" * 400, "9" * 5000, "1000000000", "NaN", "٣", ""),
    "--requests": ("0", "-1", "9" * 400, "9" * 5000, "1000000000000", "NaN"),
    "--warmup": ("-1", "9" * 400, "1000000000000"),
    "--max-tokens": ("0", "9" * 400, "1000000000000"),
    "--seed": ("-1", "9" * 400, str(2**63)),
    "--rounds": ("0", "9" * 400, "1000000000000"),
    "--rate": ("0", "nan", "inf", "1e400", "1e-300", "1e300"),
    "--duration": ("0", "nan", "inf", "1e300h", "h", ""),
    "--timeout": ("0", "nan", "inf", "-1"),
    "--max-error-rate": ("nan", "inf", "-1", "2"),
    "--model": ("\x1b[2J", "\ud800", "x" * 1000),
    "--extra-body": ("[]", "{", '{"a": NaN}', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500),
    "--slo": ("tpot_s=nan", "tpot_s=inf", "tpot_s=1e300", "x=1"),
    "--objective": (
        "tpot_s=nan",
        "tpot_s.p95=1e308",
        "tpot_s.=1",
        "tpot_s.p100=1",
        "tpot_s=1,tpot_s.p95=2",
        "x=1",
    ),
    "--tokens-per-step": ("spec=0", "spec=" + "9" * 400, "spec=1000000000000", "spec=nan"),
    "--usd-per-hour": ("spec=nan", "spec=inf", "spec=1e300"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_absurd_option_is_refused(option: str, tmp_path: Path, capsys: Captured) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_content()))
    for value in OPTIONS[option]:
        refused(plan, capsys, option, value)


WITHOUT_SPACES = r"""
host host:8000/v1 //host/v1 http:host/v1 http:///v1 http:// ftp://host/v1 file:///etc/passwd javascript:alert(1)
unix:///var/run/x.sock http://host:99999/v1 http://host:0/v1 http://host:-1/v1 http://host:http/v1 http://host:²/v1
http://[::1/v1 http://::1/v1 http://[host]/v1 http://[::1]]/v1 http://a[b]/v1 http://..../v1 http://%zz/v1 http://a\b/v1
http://<host>/v1 http://host/v1?key=secret http://host/v1#secret http://me:secret@host/v1 http://secret@host/v1
http://me:secret@[::1]:8000/v1 http://host\@secret/v1
"""
URLS = (
    *WITHOUT_SPACES.split(),
    *("", "http://ho st/v1", "http://host/v1 ", " http://host/v1", "http://host\n/v1", "http://host\x00/v1"),
    *("http://host\x1b[2J/v1", "http://host/v1\r\nX: y", "http://\ud800/v1"),
    *(f"http://{'a' * 64}.example/v1", f"http://{'a.' * 2000}/v1", f"http://host/{'a' * 10_000}"),
)


@pytest.mark.parametrize("by", ["plan", "option"])
def test_an_address_that_cannot_work_is_refused_and_no_secret_of_it_shown(
    by: str, tmp_path: Path, capsys: Captured
) -> None:
    content: dict[str, Any] = plan_content()
    plan = tmp_path / "plan.json"
    for url in URLS:
        content["arms"][1]["url"] = url if by == "plan" else "http://127.0.0.1:9/v1"
        plan.write_text(json.dumps(content))
        told = refused(plan, capsys, *(["--arm", f"spec={url}"] if by == "option" else []))
        assert "secret" not in told


def test_what_is_taken_for_an_address_can_be_asked() -> None:
    """Every address that passes is one to aiohttp too: at worst nothing answers there."""
    usual = "http://münchen.example/v1 http://a_b.svc.cluster.local:8000/v1 http://[::1]:8000/v1 https://h/v1"
    chance, taken = random.Random(4), usual.split()
    odd = string.printable + "äß²٣\u2028\ud800%[]@:/\\"
    for _ in range(20_000):
        letters = "abc.-_[]:%@ 109" + odd[chance.randrange(len(odd))]
        host = "".join(chance.choices(letters, k=chance.randrange(1, 9)))
        taken.append(f"http://{host}:{chance.choice(('80', '0', '99999', '', 'x'))}/v1")
    taken = [url for url in taken if url_problem(url) is None]
    assert taken[:4] == usual.split()
    assert len(taken) > 24
    assert asyncio.run(_asked(taken[:200])).isdisjoint({aiohttp.InvalidUrlClientError, ValueError})


async def _asked(urls: list[str]) -> set[type]:
    """What comes of asking where no name is known."""
    resolver = create_autospec(aiohttp.abc.AbstractResolver, instance=True)
    resolver.resolve.side_effect = OSError
    connector, short = aiohttp.TCPConnector(resolver=resolver), aiohttp.ClientTimeout(total=0.5)
    async with aiohttp.ClientSession(timeout=short, connector=connector) as http:
        return set(map(type, await asyncio.gather(*map(http.get, urls), return_exceptions=True)))


def test_a_run_that_begins_while_another_ends_repeats_nothing(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run has looked at the arms, as it does without the lock, when the first one ends."""
    out = tmp_path / "out"
    command = ["run", "--plan", str(write_plan()), "--out", str(out), "--no-sense-check"]
    assert main(command) == 0
    lose(out, 12)
    kept, asked = len(journal.read(out).requests), len(endpoint.seen)
    first = subprocess.Popen([*BENCHMARK, *command], cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL)
    ended: list[int] = []
    plain = journal.Journal.__init__

    def after_the_first(self: journal.Journal, folder: Path) -> None:
        ended.append(first.wait(60))
        plain(self, folder)

    monkeypatch.setattr(journal.Journal, "__init__", after_the_first)
    assert main(command) == 0
    assert ended == [0]
    nothing_is_lost_or_there_twice(out)
    raw = journal.read(out)
    assert (raw.left_out, len(raw.sittings)) == ("", 2)
    assert len(raw.requests) - kept == len(endpoint.seen) - asked


def test_runs_that_begin_together_share_no_request(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    out = tmp_path / "out"
    command = [*BENCHMARK, "run", "--plan", str(write_plan()), "--out", str(out), "--no-sense-check"]
    together = [subprocess.Popen(command, cwd=ROOT, stderr=PIPE, stdout=DEVNULL, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120)[1] for process in together]
    codes = {process.returncode for process in together}
    assert {0} <= codes <= {0, 2}, told
    assert "Traceback" not in "".join(told)
    nothing_is_lost_or_there_twice(out)
    assert list(out.rglob("*.part")) == []


@pytest.mark.parametrize(("room", "code"), [(500, 3), (12_000, 3), (60_000, 3), (1_000_000, 0)])
def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_keeps_what_is_there(
    room: int, code: int, write_plan: WritePlan, tmp_path: Path, capsys: Captured
) -> None:
    out, before = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ["run", "--plan", str(write_plan()), "--out", str(out), "--no-sense-check", "--classes", "raw"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert main(command) == code
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refusals = [line for line in capsys.readouterr().err.splitlines() if line.startswith("benchmark run: ")]
    assert ["File too large; what is there is kept" in line for line in refusals] == [True] * (code == 3)
    assert list(out.rglob("*.part")) == []
    kept = recorded(out) if room > 500 else []
    assert kept or room == 500
    assert main(command) == 0
    assert recorded(out)[: len(kept)] == kept
    nothing_is_lost_or_there_twice(out, classes=1)


def recorded(out: Path) -> list[tuple[str, str]]:
    return [(r.arm, r.pair_id) for r in journal.read(out).requests if r.phase == "measured"]


def test_a_full_standard_output_is_one_line(write_plan: WritePlan, tmp_path: Path) -> None:
    command = [
        *BENCHMARK,
        "run",
        "--plan",
        str(write_plan()),
        "--out",
        str(tmp_path / "out"),
        "--no-sense-check",
        "--json",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=PIPE, text=True, timeout=60)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
