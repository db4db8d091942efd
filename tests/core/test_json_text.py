"""JSON that every program reads."""

from __future__ import annotations

import json

import pytest

from core.json_text import json_text


@pytest.mark.parametrize("indent", [None, 1])
def test_a_number_that_is_not_finite_is_null_and_all_else_stays(indent: int | None) -> None:
    content = {"a": [1.5, float("nan"), {"b": (float("inf"), -float("inf"), "NaN", None)}], "c": 1}
    read = json.loads(json_text(content, indent=indent), parse_constant=pytest.fail)
    assert read == {"a": [1.5, None, {"b": [None, None, "NaN", None]}], "c": 1}
