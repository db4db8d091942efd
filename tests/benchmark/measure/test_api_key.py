from __future__ import annotations

import json
from time import process_time

import pytest

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
