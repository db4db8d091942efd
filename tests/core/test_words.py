"""One form for one thing, another for several; lines within the terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from core.words import count, listed
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "arm", "1 arm"),
        (2, "arm", "2 arms"),
        (0, "problem", "0 problems"),
        (1024, "request", "1,024 requests"),
        (3, "class", "3 classes"),
        (2, "Trn2 node", "2 Trn2 nodes"),
        (2, "query", "2 queries"),
        (2, "day", "2 days"),
    ],
)
def test_a_noun_follows_its_number(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


def test_names_are_listed_as_a_person_lists_them() -> None:
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert listed(list("abcdef"), most=3) == "a, b and 4 more"


@pytest.mark.parametrize(("columns", "seen"), [("", 100), ("40", 60), ("80", 80), ("200", 100)])
def test_the_width_is_the_terminals_between_60_and_100(columns: str, seen: int) -> None:
    program = (
        "from core.screen import width, wrapped; print(width(), max(map(len, wrapped('word ' * 99, '  '))))"
    )
    environment = {**os.environ, "COLUMNS": columns}
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    known, longest = map(int, printed.stdout.split())
    assert known == seen
    assert seen - 5 <= longest <= seen
