"""Words, names and JSON: numbers of things, labels in any script, and what every program reads."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trnspec.core.differences import ABSENT, Difference, differences
from trnspec.core.json_text import json_text
from trnspec.core.words import as_ascii, count, is_label, listed, span

COUNTS = [(1, "arm", "1 arm"), (0, "problem", "0 problems"), (1024, "request", "1,024 requests")]
COUNTS += [(3, "class", "3 classes"), (2, "Trn2 node", "2 Trn2 nodes"), (2, "query", "2 queries")]
COUNTS += [(2, "day", "2 days")]


def test_a_noun_follows_its_number() -> None:
    assert [count(number, noun) for number, noun, _ in COUNTS] == [text for *_, text in COUNTS]


def test_names_are_listed_as_a_person_lists_them() -> None:
    texts = ["", "a", "a and b", "a, b and c"]
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == texts
    assert listed(list("abcdef"), max_names=3) == "a, b and 4 more"


def test_a_range_shows_both_ends() -> None:
    assert span(1.74, 1.86, digits=2) == "1.74 to 1.86"
    assert span(1.62, 1.8, digits=0) == "1.6 to 1.8"
    assert span(1234.2, 1234.3, digits=0, to=", ") == "1,234.2, 1,234.3"
    assert span(2, 2, digits=0) == "2 to 2"
    assert span(math.nan, math.nan, digits=1) == "nan to nan"


ESCAPED = {"open-ended": "open-ended", "100 % code": "100 % code"}
ESCAPED |= {"Übersetzung": "%C3%9Cbersetzung", "翻訳": "%E7%BF%BB%E8%A8%B3"}


def test_a_name_stays_as_it_was_typed_and_ascii_services_get_it_escaped() -> None:
    assert all(map(is_label, ESCAPED))
    assert {name: as_ascii(name) for name in ESCAPED} == ESCAPED


@pytest.mark.parametrize(
    "name", ["", " ", ":x", "a\nb", "a\x1b[31m", "a\u202eb", "a\u2028", "\ud800", "a" * 129, "翻" * 40]
)
def test_what_no_terminal_shows_or_no_dimension_holds_is_no_name(name: str) -> None:
    assert not is_label(name)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_number_that_is_not_finite_is_null_and_all_else_stays(indent: int | None) -> None:
    content = {"a": [1.5, float("nan"), {"b": (float("inf"), -float("inf"), "NaN", None)}], "c": 1}
    read = json.loads(json_text(content, indent=indent), parse_constant=pytest.fail)
    assert read == {"a": [1.5, None, {"b": [None, None, "NaN", None]}], "c": 1}


ONE, TWO = {"name": "one", "value": 1}, {"name": "two", "value": 2}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", 1, 2)]),
        ({"a": 1}, {"b": 1}, [("a", 1, ABSENT), ("b", ABSENT, 1)]),
        ({"a": ["x", "y"]}, {"a": ["x", "z"]}, [("a[1]", "y", "z")]),
        ({"a": ["x"]}, {"a": ["x", "y"]}, [("a[1]", ABSENT, "y")]),
        ([ONE, TWO], [ONE, {**TWO, "value": 3}], [("[two].value", 2, 3)]),
        ([ONE], [ONE, TWO], [("[two]", ABSENT, TWO)]),
        ([ONE, TWO], [TWO, ONE], [("", [ONE, TWO], [TWO, ONE])]),
        ([ONE, ONE], [ONE, TWO], [("[1].name", "one", "two"), ("[1].value", 1, 2)]),
        ({"a": 1}, {"a": [1]}, [("a", 1, [1])]),
    ],
)
def test_differences_are_leaves_of_named_things_or_of_places(
    old: Any, new: Any, found: list[tuple[str, Any, Any]]
) -> None:
    assert list(differences(old, new)) == [Difference(*one) for one in found]
    assert list(differences(old, new, same=lambda *_: True)) == []
