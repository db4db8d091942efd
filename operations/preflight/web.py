"""HTTP without credentials: registries and the question which address we come from."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException

from experiment.finding import Finding, Outside

_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
TIMEOUT_S = 20


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
        request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return _answer(response.status, response.headers.items(), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.headers.items(), error.read())
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Outside(
                Finding(url, None, f"does not answer ({reason})", "check network and proxy")
            ) from None


def _answer(status: int, headers: object, body: bytes) -> Answer:
    return Answer(status, {str(key).lower(): str(value) for key, value in headers}, body)  # type: ignore[attr-defined] # http.client and urllib type their items differently


def challenge(header: str) -> dict[str, str]:
    """`Bearer realm="...",service="...",scope="..."` as a mapping."""
    return dict(_CHALLENGE.findall(header))
