"""Numbers of things in words (`1 arm`, `2 arms`, `a, b and c`), and names that people give to things, in any language."""

from __future__ import annotations

import string
from collections.abc import Sequence
from urllib.parse import quote

_IRREGULAR = {"class": "classes", "prefix": "prefixes", "match": "matches", "box": "boxes"}


def plural(number: float, noun: str) -> str:
    """The noun in the form that belongs to the number: its last word takes the ending; for 1 it is unchanged."""
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
    """`1 arm`, `2 arms`, `1,024 requests`."""
    return f"{number:,} {plural(number, noun)}"


def listed(names: Sequence[str], *, most: int | None = None) -> str:
    """`a, b and c`; of more than `most` names the last are counted: `a, b and 4 more`."""
    if most is not None and len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


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
