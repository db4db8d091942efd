"""Names that people give to classes, prompts and conversations, in any language."""

from __future__ import annotations

import string
from urllib.parse import quote

_LONGEST, _LONGEST_ASCII = 128, 250
"""In characters; a dimension of CloudWatch has at most 255."""
WANTED = f"printable text, {_LONGEST} characters at most, not beginning with a colon"


def is_label(text: str) -> bool:
    """Whether `text` can be such a name."""
    fits = len(text) <= _LONGEST and text.isprintable() and len(as_ascii(text)) <= _LONGEST_ASCII
    return fits and bool(text.strip()) and not text.startswith(":")


def as_ascii(label: str) -> str:
    """The name for a service that takes ASCII only, as CloudWatch does in its dimensions: other characters as in a URL."""
    return label if label.isascii() else quote(label, safe=string.printable)
