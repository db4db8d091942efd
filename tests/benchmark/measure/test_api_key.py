from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest

from tests.benchmark.conftest import Captured, WritePlan, plan_content, reported
from tests.benchmark.endpoint import Endpoint
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure.api_key import REPLACEMENT, hidden

KEY = "sk-proj-aZ3x9Qb7kd"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHMARK_API_KEY", KEY)


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        KEY.upper(),
        f"{KEY[:7]}\n{KEY[7:]}",
        f"{KEY[:7]} \r\n\t{KEY[7:]}",
        " ".join(KEY),
        "\N{ZERO WIDTH SPACE}".join(KEY),
        "\0".join(KEY),
        f"{KEY[:7]}%0A%20{KEY[7:]}",
        f"{KEY[:7]}&#10;{KEY[7:]}",
        f"{KEY[:7]}\\\n{KEY[7:]}",
        json.dumps(json.dumps(f"{KEY[:7]}\n{KEY[7:]}"))[3:-3],
    ],
)
def test_only_the_key_is_replaced_however_it_is_broken(written: str) -> None:
    for before, after in (("grün \\n \ud800: ", " %41 &amp; ü"), ("", "")):
        assert hidden(f"{before}{written}{after}") == f"{before}{REPLACEMENT}{after}"
    two = hidden(f"{written}, {written}")
    assert two == f"{REPLACEMENT}, {REPLACEMENT}"


def test_a_text_without_the_key_stays_and_a_placeholder_is_not_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "sk-proj is %41 the \\u0061 beginning\n of &lt; it"
    assert hidden(text) == text
    monkeypatch.setenv("BENCHMARK_API_KEY", "EMPTY")
    assert hidden("EMPTY") == "EMPTY"


def test_where_a_text_is_cut_no_part_of_the_key_stays() -> None:
    for broken in (KEY, " ".join(KEY)):
        shown = hidden(f"{'word ' * 99}{broken[:-2]}", cut=True)
        assert shown == ("word " * 99)[: len(shown)]
        assert shown


def test_a_key_of_100_000_characters_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern of all its forms took 98 s."""
    long = f"sk-{'aZ3x-_9Qb%41' * 8334}"
    monkeypatch.setenv("BENCHMARK_API_KEY", long)
    began = process_time()
    assert hidden(f"Bearer {long[:500]}\n{long[500:]}.") == f"Bearer {REPLACEMENT}."
    assert process_time() - began < 3
    began = process_time()
    for _ in range(100):
        hidden("An answer of the usual length, 100 %, in C:\\new & old. " * 40)
    assert process_time() - began < 1


SECRETS = {
    "VENDOR_A": "key-of-the-first-vendor",
    "VENDOR_B": "key-of-the-second-vendor",
    "TENANT": "tenant-of-ours-17",
}


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> dict[str, object]:
    """A plan of two servers that want different keys, of which the second has a header of its own."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    endpoint.keys = {
        "steady": f"Authorization: Bearer {SECRETS['VENDOR_A']}",
        "spec": f"x-tenant: {SECRETS['TENANT']}",
    }
    steady, spec = plan_content()["arms"]
    return {"arms": [steady, spec | {"headers_env": {"x-tenant": "TENANT"}}]}


def test_two_vendors_get_a_key_each_and_no_file_or_message_has_one(
    vendors: dict[str, object], endpoint: Endpoint, write_plan: WritePlan, out: Path, capsys: Captured
) -> None:
    words = [
        "run",
        "--plan",
        str(write_plan(only="chat", **vendors)),
        "--out",
        str(out),
        "--questions",
        "none",
    ]
    words += ["--exit-zero", "--requests", "2", "--concurrency", "1"]
    assert main(words) == 3, "an arm names a variable, so the first gets no key"
    assert "/models: answered HTTP 401; set BENCHMARK_API_KEY or OPENAI_API_KEY" in capsys.readouterr().err
    words += ["--api-key-env", "steady=VENDOR_A", "--api-key-env", "spec=VENDOR_B"]
    endpoint.says = lambda body: f"I got {' and '.join(SECRETS.values())}."
    assert main(words) == 0
    assert len(endpoint.seen) > 10
    assert reported(out, "--all")
    kept = {path.name: path.read_text() for path in out.rglob("*") if path.is_file()}
    kept |= dict(zip(("stdout", "stderr"), capsys.readouterr(), strict=True))
    assert kept["requests.jsonl"].count(f"I got {REPLACEMENT} and {REPLACEMENT} and {REPLACEMENT}.") > 10
    assert '"api_key_env":"VENDOR_A"' in kept["requests.jsonl"]
    assert [name for name, text in kept.items() if any(secret in text for secret in SECRETS.values())] == []


@pytest.mark.parametrize(
    ("value", "told"), [("", "VENDOR_B is not set; export it"), ("ü", "VENDOR_B: holds characters")]
)
def test_a_key_that_cannot_be_sent_is_refused_before_anything_is_sent(
    vendors: dict[str, object],
    endpoint: Endpoint,
    write_plan: WritePlan,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    value: str,
    told: str,
) -> None:
    monkeypatch.setenv("VENDOR_B", value)
    assert (
        main(
            ["run", "--plan", str(write_plan(**vendors)), "--out", str(out), "--api-key-env", "spec=VENDOR_B"]
        )
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert (endpoint.seen, out.exists()) == ([], False)
