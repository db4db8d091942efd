"""Plans, options and addresses that nobody would write on purpose: each is refused in short, clean lines, and soon."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import string
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import pytest

from benchmark.__main__ import main
from benchmark.addresses import url_problem
from benchmark.measure import journal
from tests.benchmark.conftest import WritePlan, plan_content
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.measure.test_run import lose
from tests.conftest import ROOT

BENCHMARK = (sys.executable, "-m", "benchmark")
ABSURD: dict[str, Any] = {
    "negative": "-1",
    "10^400": "1" + "0" * 400,
    "5,000 digits": "1" * 5000,
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "1e400": "1e400",
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
simultaneous slo prompts unknown
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


def _code(command: list[str]) -> object:
    """How a command ends, also where its options cannot be read."""
    try:
        return main(command)
    except SystemExit as ended:
        return ended.code


def refused(plan: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    began = perf_counter()
    assert main(["run", "--plan", str(plan), "--out", str(plan.parent / "out"), *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.rstrip("\n").isprintable()
    assert len(told) < 5000
    assert not (plan.parent / "out").exists()
    assert perf_counter() - began < 20
    return told


@pytest.mark.parametrize("key", KEYS.split())
def test_an_absurd_value_in_a_plan_is_refused_in_one_line(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
            refused(plan, capsys)


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


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_not_a_plan_is_refused_in_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_bytes(FILES[case])
    refused(tmp_path / "plan.json", capsys)


def test_a_file_without_an_end_and_a_name_with_escapes_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").symlink_to("/dev/zero")
    refused(tmp_path / "plan.json", capsys)
    refused(tmp_path / "\x1b[2J\nplan.json", capsys)


def test_messages_without_role_or_content_are_sent_as_they_are(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    messages = [{}, {"role": "user"}, {"role": "user", "content": "One?"}]
    plan = write_plan(prompts=[{"id": "a", "class": "b", "messages": messages}], requests=1, warmup=0)
    assert main(["run", "--plan", str(plan), "--out", str(tmp_path / "out")]) == 0
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
    "--tokens-per-step": ("spec=0", "spec=" + "9" * 400, "spec=1000000000000", "spec=nan"),
    "--usd-per-hour": ("spec=nan", "spec=inf", "spec=1e300"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_absurd_option_is_refused(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_content()))
    for value in OPTIONS[option]:
        code = _code(["run", "--plan", str(plan), "--out", str(tmp_path / "out"), option, value])
        assert code == 2, value[:80]
        assert len(capsys.readouterr().err) < 5000


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
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = plan_content()
    plan = tmp_path / "plan.json"
    for url in URLS:
        content["arms"][1]["url"] = url if by == "plan" else "http://127.0.0.1:9/v1"
        plan.write_text(json.dumps(content))
        options = ["--arm", f"spec={url}"] if by == "option" else []
        assert _code(["run", "--plan", str(plan), "--out", str(tmp_path / "out"), *options]) == 2, url[:80]
        told = capsys.readouterr().err
        assert "secret" not in told
        assert "\x1b" not in told
        assert not (tmp_path / "out").exists()


def test_an_unusual_address_is_taken() -> None:
    taken = "http://münchen.example/v1 http://a_b.svc.cluster.local:8000/v1 http://[::1]:8000/v1 https://h/v1"
    assert [url_problem(url) for url in taken.split()] == [None] * 4


def test_what_is_taken_for_an_address_can_be_asked() -> None:
    """Every address that passes is one to aiohttp too: at worst nothing answers there."""
    chance = random.Random(4)
    odd = string.printable + "äß²٣\u2028\ud800%[]@:/\\"
    taken = []
    for _ in range(20_000):
        host = "".join(
            chance.choices("abc.-_[]:%@ 109" + odd[chance.randrange(len(odd))], k=chance.randrange(1, 9))
        )
        url = f"http://{host}:{chance.choice(('80', '0', '99999', '', 'x'))}/v1"
        if url_problem(url) is None:
            taken.append(url)
    assert len(taken) > 20
    assert asyncio.run(_asked(taken[:200])).isdisjoint({aiohttp.InvalidUrlClientError, ValueError})


class Nowhere(aiohttp.abc.AbstractResolver):
    """Knows no name."""

    async def resolve(self, *_: Any) -> Any:
        raise OSError

    async def close(self) -> None:
        """Nothing is open."""


async def _asked(urls: list[str]) -> set[type]:
    """What comes of asking."""
    short = aiohttp.ClientTimeout(total=0.5)
    async with aiohttp.ClientSession(
        timeout=short, connector=aiohttp.TCPConnector(resolver=Nowhere())
    ) as http:
        return set(map(type, await asyncio.gather(*map(http.get, urls), return_exceptions=True)))


def test_a_run_that_begins_while_another_ends_repeats_nothing(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run has looked at the arms, as it does without the lock, when the first one ends."""
    out = tmp_path / "out"
    command = ["run", "--plan", str(write_plan()), "--out", str(out)]
    assert main(command) == 0
    lose(out, 12)
    whole = [*BENCHMARK, *command]
    first = subprocess.Popen(whole, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waited = threading.Event()
    plain = journal.Journal.__init__

    def after_the_first(self: journal.Journal, folder: Path) -> None:
        first.wait(60)
        waited.set()
        plain(self, folder)

    monkeypatch.setattr(journal.Journal, "__init__", after_the_first)
    assert main(command) == 0
    assert waited.is_set()
    assert len(recorded(out)) == len(set(recorded(out))) == 24
    assert journal.read(out).left_out == ""
    assert len([seen for seen in endpoint.seen if "max_tokens" in seen.body]) <= 24 + 12 + 4 + 2


def test_runs_that_begin_together_share_no_request(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    command = [*BENCHMARK, "run", "--plan", str(write_plan()), "--out", str(tmp_path / "out")]
    together = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    told = [process.communicate(timeout=120)[1].decode() for process in together]
    codes = sorted(process.returncode for process in together)
    assert set(codes) <= {0, 2}, told
    assert 0 in codes
    assert "Traceback" not in "".join(told)
    assert len(recorded(tmp_path / "out")) == len(set(recorded(tmp_path / "out"))) == 24
    assert list((tmp_path / "out").rglob("*.part")) == []


@pytest.mark.parametrize(("room", "code"), [(500, 3), (12_000, 3), (40_000, 0)])
def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_keeps_what_is_there(
    room: int, code: int, write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, before = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ["run", "--plan", str(write_plan()), "--out", str(out), "--classes", "raw"]
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
    assert len(recorded(out)) == len(set(recorded(out))) == 12


def recorded(out: Path) -> list[tuple[str, str]]:
    return [(r.arm, r.pair_id) for r in journal.read(out).requests if r.phase == "measured"]


def test_a_full_standard_output_is_one_line(write_plan: WritePlan, tmp_path: Path) -> None:
    words = [*BENCHMARK, "run", "--plan", str(write_plan()), "--out", str(tmp_path / "out")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*words, "--json"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
