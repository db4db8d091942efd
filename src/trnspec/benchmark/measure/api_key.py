"""The API keys and secret headers of the arms: sent with each request, stored nowhere. A plan holds the names of their variables.

The text of a server may contain the key: an error that quotes the request, a proxy that echoes headers, a model that sees them.
So each text of a server passes through `hidden` before it is shortened and stored in a record or a message.
"""

from __future__ import annotations

import html
import os
import re
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

from trnspec.benchmark.errors import PlanError
from trnspec.benchmark.plan import PlannedArm

VARIABLES = ("BENCHMARK_API_KEY", "OPENAI_API_KEY")
"""Environment variables with the API key of all arms. The first one that is set is used, unless an arm names a variable of its own."""
_named: dict[str, None] = {}
"""Environment variables that arms name."""
KEY_REMEDY = f"set {' or '.join(VARIABLES)} to the key of all arms, or name the variable of each arm: --api-key-env ARM=VARIABLE"
REPLACEMENT = "(API key)"
_MIN_CHARS = 6
"""A shorter key is a placeholder, such as EMPTY for a server without a key, and may occur in an answer."""
_MAX_ESCAPE_CHARS = 8
"""The maximum number of characters for one character of the key: a Unicode escape with a twice escaped backslash."""
_MAX_LEVELS = 3
"""How often escapes are replaced: JSON in JSON in a URL has three levels of them."""
_IN_URLS = str.maketrans("+/", "-_")
_IGNORED = bytes({*range(256)} - {*range(0x21, 0x7F)})
"""Bytes that a server may put between the characters of a key: white space, control characters, and all that is not ASCII."""
_ESCAPE = re.compile(
    rb"%([0-9a-fA-F]{2})|\\(?:[uU]00|[xX])([0-9a-fA-F]{2})|\\(.)|&#?[0-9a-zA-Z]{1,32};",
    re.DOTALL,
)
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def secret_headers(arm: PlannedArm, arms: Sequence[PlannedArm]) -> dict[str, str]:
    """Return the headers of an arm that hold its API key or come from its variables; `hidden` hides their values from now on.

    If one of all `arms` names a variable, the others get no key: theirs may be servers of another vendor.
    Raises PlanError for a variable of the arm that is not set, and for a value that is not possible in a header.
    """
    variables = (*filter(None, [arm.api_key_env]), *arm.headers_env.values())
    _named.update(dict.fromkeys(variables))
    if missing := next((name for name in variables if not _value(name)), None):
        raise PlanError(
            f"arm {arm.name}: the environment variable {missing} is not set; export it with the key or header of {arm.name}"
        )
    apart = any(one.api_key_env or one.headers_env for one in arms)
    name = arm.api_key_env or ("" if apart else next(filter(_value, VARIABLES), ""))
    for variable in filter(None, (name, *variables)):
        if not (_value(variable).isascii() and _value(variable).isprintable()):
            raise PlanError(
                f"{variable}: holds characters that an HTTP header cannot; set it to the key alone"
            )
    key = {"Authorization": f"Bearer {_value(name)}"} if name else {}
    return key | {header: _value(variable) for header, variable in arm.headers_env.items()}


def hidden(text: str, *, cut: bool = False) -> str:
    """`text` without the API keys and secret headers: plain, escaped for JSON, a URL or HTML, in base64, or as hexadecimal digits; also with upper
    and lower case changed, and broken by line breaks or spaces.

    If the text was `cut`, its end is removed too, because it may be a part of the key.
    """
    keys = [key for name in (*VARIABLES, *_named) if len(key := _value(name)) >= _MIN_CHARS]
    if not keys:
        return text
    forms, raw = tuple(chain.from_iterable(map(_forms, keys))), text.encode(errors="surrogatepass")
    if any(form in shown for shown in map(_visible, _levels(raw)) for form in forms):
        raw = _without(raw, forms)
    elif not cut:
        return text
    if cut:
        visible = [at for at, byte in enumerate(raw) if byte not in _IGNORED]
        last = _MAX_ESCAPE_CHARS * max(map(len, keys))
        raw = raw[: visible[-last]] if last < len(visible) else b""
    return raw.decode(errors="surrogatepass")


def _value(name: str) -> str:
    return os.environ.get(name, "").strip() if name else ""


@lru_cache(maxsize=64)
def _forms(key: str) -> tuple[bytes, ...]:
    """The key in all its forms, as `_visible` shows them."""
    forms = {_visible(form) for form in (*_levels(key.encode()), *_encoded(key.encode()))}
    return tuple(form for form in forms if len(form) >= _MIN_CHARS)


def _encoded(key: bytes) -> Iterator[bytes]:
    """The key in hexadecimal digits, and in base64, which depends on the number of bytes before it (three variants)."""
    yield key.hex().encode()
    for before in range(3):
        whole = b64encode(bytes(before) + key).decode()
        own = whole[-(-before * 8 // 6) : (before + len(key)) * 8 // 6]
        yield from (own.encode(), own.translate(_IN_URLS).encode())


def _visible(text: bytes) -> bytes:
    """The text in lower case, because header values are often shown so, without the bytes that are ignored."""
    return text.lower().translate(None, _IGNORED)


def _levels(text: bytes) -> Iterator[bytes]:
    """The text as it is, and then each time with one more level of escapes replaced."""
    yield text
    for _ in range(_MAX_LEVELS):
        before, text = text, _ESCAPE.sub(_character, text)
        if text == before:
            return
        yield text


def _character(escape: re.Match[bytes]) -> bytes:
    """What an escape stands for."""
    if digits := escape[1] or escape[2]:
        return bytes.fromhex(digits.decode())
    if escape[3]:
        return _CONTROLS.get(escape[3], escape[3])
    return html.unescape(escape[0].decode()).encode(errors="replace")


def _without(raw: bytes, forms: tuple[bytes, ...]) -> bytes:
    """The text with a replacement for each form that is in one of its levels."""
    kept, end = bytearray(), 0
    for begins, ends in sorted(_spans(raw, forms)):
        if begins >= end:
            kept += raw[end:begins] + REPLACEMENT.encode()
        end = max(end, ends)
    return bytes(kept + raw[end:])


def _spans(raw: bytes, forms: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Where in the text the forms begin and end. For each byte of a level, `begins` and `ends` are its place in the text."""
    text, begins, ends = raw, array("I", range(len(raw))), array("I", range(1, len(raw) + 1))
    for _ in range(_MAX_LEVELS + 1):
        visible = array("I", (at for at, byte in enumerate(text) if byte not in _IGNORED))
        shown = _visible(text)
        for form in forms:
            at = shown.find(form)
            while at >= 0:
                yield begins[visible[at]], ends[visible[at + len(form) - 1]]
                at = shown.find(form, at + 1)
        level, begin, end, done = bytearray(), array("I"), array("I"), 0
        for escape in _ESCAPE.finditer(text):
            first, last, character = escape.start(), escape.end(), _character(escape)
            level += text[done:first] + character
            begin += begins[done:first] + array("I", [begins[first]] * len(character))
            end += ends[done:first] + array("I", [ends[last - 1]] * len(character))
            done = last
        text, begins, ends = bytes(level + text[done:]), begin + begins[done:], end + ends[done:]
