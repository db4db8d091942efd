"""HTTP without credentials: registries and the question which address we come from."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import BinaryIO

from experiment.finding import Finding, Outside
from operations.clock import TooLateError, within

_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
TIMEOUT_S = 20
_PATIENCE_S = 60
"""For the whole of an answer: one that drips never passes TIMEOUT_S."""
_MOST_BYTES = 2**20
"""A token takes a few thousand."""


@dataclass(frozen=True)
class Answer:
    """Status, headers in lower case, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Web:
    """GET and HEAD. `scheme` is for tests, whose registry has no certificate."""

    address_service = "https://checkip.amazonaws.com"

    def __init__(self, *, scheme: str = "https", address_service: str | None = None) -> None:
        self.scheme = scheme
        self.address_service = address_service or self.address_service

    def ask(self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
        """Raises `Outside` when nobody answers."""
        try:
            request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
            with within(_PATIENCE_S), urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return _answer(response.status, response.headers.items(), _body(response))
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.headers.items(), b"")  # nobody reads the page of an error
        except TooLateError:
            raise Outside(
                Finding(url, None, f"no whole answer in {_PATIENCE_S} s", "check network and proxy")
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Outside(
                Finding(url, None, f"does not answer ({reason})", "check network and proxy")
            ) from None


def _body(response: BinaryIO) -> bytes:
    """Raises ValueError for more than anything that is asked for can have."""
    content = response.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
    return content


def _answer(status: int, headers: object, body: bytes) -> Answer:
    return Answer(status, {str(key).lower(): str(value) for key, value in headers}, body)  # type: ignore[attr-defined] # http.client and urllib type their items differently


def challenge(header: str) -> dict[str, str]:
    """`Bearer realm="...",service="...",scope="..."` as a mapping."""
    return dict(_CHALLENGE.findall(header))
