"""Names in any script, and what a service gets that takes ASCII only."""

from __future__ import annotations

import pytest

from core.words import as_ascii, is_label


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("open-ended", "open-ended"),
        ("100 % code", "100 % code"),
        ("Übersetzung", "%C3%9Cbersetzung"),
        ("翻訳", "%E7%BF%BB%E8%A8%B3"),
    ],
)
def test_a_name_stays_as_it_was_typed_and_ascii_services_get_it_escaped(name: str, told: str) -> None:
    assert is_label(name)
    assert as_ascii(name) == told


@pytest.mark.parametrize(
    "name", ["", " ", ":x", "a\nb", "a\x1b[31m", "a\u202eb", "a\u2028", "\ud800", "a" * 129, "翻" * 40]
)
def test_what_no_terminal_shows_or_no_dimension_holds_is_no_name(name: str) -> None:
    assert not is_label(name)
