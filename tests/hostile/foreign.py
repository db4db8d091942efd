"""Answers with status 200 that AWS did not give, put in the place of the n-th one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from botocore.awsrequest import AWSResponse
from moto.core.models import botocore_stubber

from tests.operations.clients import REGION, shared_client

BODIES = {
    "a login page": b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Sign in</body></html>",
    "a page that is XML": b"<html><body>Sign in</body></html>",
    "nothing": b"",
    "half of an answer": b'{"cluster": {"name": "qwen3-',
    "JSON of something else": b'{"status": "ok"}',
    "a list": b"[]",
    "XML of something else": b'<?xml version="1.0"?><answer><ok/></answer>',
    "an escape sequence": b"\x1b[2J\x1b]0;owned\x07",
    "no text at all": b"\xff\xfe\x00\x01",
    "very deep JSON": b"[" * 100_000,
}
SERVICES = """
cloudformation cloudwatch ec2 eks iam resourcegroupstaggingapi s3 scheduler service-quotas ssm sts
"""


class Raw(BytesIO):
    """What urllib3 gives botocore."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


class Foreign:
    """Counts the calls; `nth` of them gets `body`.

    `delivered`: the call itself reached AWS, only its answer was lost.
    """

    def __init__(self, body: bytes = b"", *, nth: int = 1, delivered: bool = False) -> None:
        self.body, self.nth, self.delivered = body, nth, delivered
        self.calls: list[str] = []

    def __call__(self, request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        botocore_stubber.enabled = True
        self.calls.append(event_name.removeprefix("before-send."))
        if len(self.calls) != self.nth:
            return None
        botocore_stubber.enabled = self.delivered
        return AWSResponse(request.url, 200, {"Content-Type": "text/html"}, Raw(self.body))


@contextmanager
def in_place_of(foreign: Foreign) -> Iterator[Foreign]:
    """As long as it lasts, for the clients that all tests share."""
    clients = [shared_client(service, *where) for service in SERVICES.split() for where in ((), (REGION,))]
    try:
        for client in clients:
            client.meta.events.register_first("before-send", foreign, unique_id="foreign")
        yield foreign
    finally:
        for client in clients:
            client.meta.events.unregister("before-send", foreign, unique_id="foreign")
        botocore_stubber.enabled = True
