"""Links between the guides, their index in the README, and their length."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "apiserver" / "README.md",
    *GUIDES,
    *sorted((ROOT / "docs/decisions").glob("*.md")),
]
MADE_UP = {"tests/data/vllm-options/VERSION.json"}
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere_and_every_file_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in _LINK.findall(text):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in _anchors(found.read_text(encoding="utf-8")), f"{page.name}: {target}#{anchor}"
    rooms = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier())
    for name in re.findall(rf"`((?:{rooms})/[\w./-]*)`", text):
        assert (ROOT / name).exists() or name in MADE_UP, name


def test_the_readme_names_every_guide_and_all_together_are_short() -> None:
    """As `wc -w` counts them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", text))
    assert {path.name for path in GUIDES} == listed
    words = [len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "README.md", *GUIDES)]
    assert len(words) == 13
    assert sum(words) <= 14_000


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
