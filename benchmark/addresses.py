"""The base URL of an arm: whether one may be it, and without what may be secret in it."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from reprlib import repr as shown
from typing import Any
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9._-]+")
_NUMBERS = re.compile(r"[0-9.]+")
_BRACKETED = re.compile(r"\[[^\[\]]+\](:[0-9]+)?")
_MOST_URL = 2000


def url_problem(value: Any) -> str | None:
    """Why `value` is not the base URL of an arm. What may be secret in it is not repeated."""
    wanted = "must be an http(s) URL that ends in /v1"
    if not isinstance(value, str) or not value.isprintable() or any(map(str.isspace, value)):
        return f"{shown(value)}; {wanted}, without spaces"
    if "@" in value:
        return "holds a user name or a password, which results would keep; put the API key into BENCHMARK_API_KEY"
    if "?" in value or "#" in value:
        return f"has a query or a fragment; {wanted}"
    try:
        parts = urlsplit(value)
        port, host = parts.port, parts.hostname or ""
        if "[" in parts.netloc:
            host = str(IPv6Address(host)) if _BRACKETED.fullmatch(parts.netloc) else ""
        else:
            host = host.encode("idna").decode()
        if _NUMBERS.fullmatch(host):
            host = str(IPv4Address(host))
    except ValueError as error:  # an encoding error is one
        return f"{shown(value)} ({error}); {wanted}"
    known = parts.scheme in ("http", "https") and port != 0 and len(value) <= _MOST_URL
    return None if known and (":" in host or _HOST.fullmatch(host)) else f"{shown(value)}; {wanted}"


def without_credentials(url: Any) -> Any:
    """`url` without a user name and a password in it, as older runs may have recorded them."""
    return re.sub(r"^(\w+://)[^/]*@", r"\1", url) if isinstance(url, str) else url
