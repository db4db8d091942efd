from __future__ import annotations

from typing import Any

import pytest

from core.differences import ABSENT, Difference, differences

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


def test_who_compares_says_which_leaves_are_the_same() -> None:
    assert list(differences({"a": "${X}"}, {"a": "x"}, same=lambda old, new: "$" in old)) == []
