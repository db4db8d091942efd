"""The committed reference of the commands is what they say of themselves."""

from __future__ import annotations

import sys

import pytest

from operations.__main__ import VERBS
from tests.docs.commands_page import PAGE, page


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="argparse writes its options in another way from 3.13 on"
)
def test_the_page_says_what_each_verb_says_to_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    fresh = page()
    assert all(f"\n### trnspec {name}\n\n```text\n" in fresh for name in VERBS)
    # How argparse breaks lines differs between versions of Python.
    assert PAGE.read_text(encoding="utf-8").split() == fresh.split(), "run: make docs"
