"""Counts and lists in words (`1 arm`, `2 arms`, `a, b and c`), and names that users choose, in any language."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from urllib.parse import quote

_IRREGULAR = {"class": "classes", "prefix": "prefixes", "match": "matches", "box": "boxes"}


def plural(number: float, noun: str) -> str:
    """Return the noun in the form that fits the number; only its last word changes."""
    if number == 1:
        return noun
    *before, last = noun.split(" ")
    if last in _IRREGULAR:
        ending = _IRREGULAR[last]
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        ending = f"{last[:-1]}ies"
    else:
        ending = f"{last}es" if last.endswith(("s", "x", "ch", "sh")) else f"{last}s"
    return " ".join([*before, ending])


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 arm`, `2 arms`, `1,024 requests`."""
    return f"{number:,} {plural(number, noun)}"


def listed(names: Sequence[str], *, max_names: int | None = None) -> str:
    """Join names as `a, b and c`. Names above `max_names` are only counted: `a, b and 4 more`."""
    if max_names is not None and len(names) > max_names:
        names = [*names[: max_names - 1], f"{len(names) - max_names + 1} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def span(low: float, high: float, *, digits: int, to: str = " to ") -> str:
    """Return a range as `1.74 to 1.86`, with more digits where both ends would be the same figure."""
    ends = [f"{end:,.{digits}f}" for end in (low, high)]
    if ends[0] == ends[1] and math.isfinite(high - low) and not math.isclose(low, high):
        return span(low, high, digits=digits + 1, to=to)
    return to.join(ends)


_MAX_LENGTH, _MAX_ASCII_LENGTH = 128, 250
"""In characters; a dimension of CloudWatch has at most 255."""
LABEL_RULE = f"printable text, {_MAX_LENGTH} characters at most, not beginning with a colon"


def is_label(text: str) -> bool:
    """Return whether `text` can be a name that users choose."""
    fits = len(text) <= _MAX_LENGTH and text.isprintable() and len(as_ascii(text)) <= _MAX_ASCII_LENGTH
    return fits and bool(text.strip()) and not text.startswith(":")


def as_ascii(label: str) -> str:
    """Return the name for a service that takes ASCII only, such as CloudWatch; other characters are encoded as in a URL."""
    return label if label.isascii() else quote(label, safe=string.printable)
