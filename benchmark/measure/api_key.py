"""The key of the arms: sent with each request, and kept nowhere.

What a server says may repeat it: a 401 that quotes the request, a proxy that echoes headers, a model that is shown them. So
`hidden` is called wherever a text of a server enters a record or a message, before the text is cut.
"""

from __future__ import annotations

import html
import os
import re
from base64 import b64encode
from collections.abc import Iterator
from functools import lru_cache

from benchmark.errors import PlanError

API_KEYS = ("BENCHMARK_API_KEY", "OPENAI_API_KEY")
"""Variables with the key of the arms, where they need one; the first that is set counts."""
KEY_REMEDY = f"set {' or '.join(API_KEYS)} to the key of the arms"
INSTEAD = "(API key)"
_SHORTEST = 6
"""A shorter key is a placeholder, such as EMPTY for a server that asks for none, and may be a word of an answer."""
_IN_URLS = str.maketrans("+/", "-_")
_LONGEST_ESCAPE = 8
"""Characters that one of the key may be written with: a Unicode escape whose backslash was escaped twice."""


def authorization() -> dict[str, str]:
    """The header with the arms' key, if one is set. Raises PlanError for one that no header can hold."""
    name, key = _key()
    if not (key.isascii() and key.isprintable()):
        raise PlanError(f"{name}: holds characters that an HTTP header cannot; set it to the key alone")
    return {"Authorization": f"Bearer {key}"} if key else {}


def hidden(text: str, *, cut: bool = False) -> str:
    """`text` without the key: plain, with its characters escaped for JSON, a URL or HTML, in base64 or as hexadecimal digits.

    Of a text that was `cut` somewhere, the end is dropped where a part of the key may be.
    """
    _, key = _key()
    if len(key) < _SHORTEST:
        return text
    found = _pattern(key).sub(INSTEAD, text)
    return found[: -_LONGEST_ESCAPE * len(key)] if cut else found


def _key() -> tuple[str, str]:
    """The variable and what it holds; empty texts where none is set."""
    named = ((name, os.environ.get(name, "").strip()) for name in API_KEYS)
    return next((one for one in named if one[1]), ("", ""))


@lru_cache(maxsize=4)
def _pattern(key: str) -> re.Pattern[str]:
    """In any case: values of headers are often shown in lower case."""
    encoded = [*_encoded(key.encode())]
    either = "|".join(["".join(map(_written, key)), *map(re.escape, encoded)])
    begins = "".join(map(re.escape, {key[0], *"%\\&", *(one[0] for one in encoded)}))
    return re.compile(f"(?=[{begins}])(?:{either})", re.IGNORECASE)  # looking ahead halves the time


def _written(character: str) -> str:
    """A character as it is, or escaped in one of the usual ways."""
    code = ord(character)
    number = f"%{code:02x}|\\\\+u00{code:02x}|\\\\+x{code:02x}|&#(?:0*{code}|x0*{code:x});"
    escaped = "" if character.isalnum() else rf"|\\+{re.escape(character)}"
    named = html.escape(character)
    return f"(?:{re.escape(character)}|{number}{escaped}{f'|{named}' if named != character else ''})"


def _encoded(key: bytes) -> Iterator[str]:
    """Hexadecimal digits, and what base64 of any text makes of the key in it, which depends on how many bytes are before it."""
    yield key.hex()
    for before in range(3):
        whole = b64encode(bytes(before) + key).decode()
        own = whole[-(-before * 8 // 6) : (before + len(key)) * 8 // 6]
        yield from (own, own.translate(_IN_URLS))
