"""The account and the region of one experiment, and calls into it whose failures are one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from operations.errors import OperationsError

TRIES = 8
"""Attempts of a call before throttling is reported; botocore's adaptive mode waits longer after each."""


class Aws:
    """What a verb asks AWS with.

    `account` is the id that the caller expects; credentials of another one are refused before anything else is asked.
    `make_client` gives a boto3 client for a service's name; the tests hand in their own.
    """

    def __init__(
        self, region: str, *, account: str | None = None, make_client: Callable[[str], Any] | None = None
    ) -> None:
        self.region = region
        self._expected = account
        self._make = make_client or self._boto_client
        self._clients: dict[str, Calls] = {}

    def client(self, service: str) -> Calls:
        """Calls to a service in the experiment's region."""
        if self._expected and service != "sts":
            _ = self.identity  # refused before anything else is asked
        if service not in self._clients:
            self._clients[service] = Calls(service, self.region, lambda: self._make(service))
        return self._clients[service]

    @cached_property
    def identity(self) -> dict[str, str]:
        """`Account` and `Arn` of the caller. Raises `OperationsError` when it is not the expected account."""
        answer = self.client("sts").get_caller_identity()
        found = {"Account": str(answer["Account"]), "Arn": str(answer["Arn"])}
        if self._expected and found["Account"] != self._expected:
            raise OperationsError(
                f"account {found['Account']}: these credentials are not of {self._expected}, which --account names; "
                "set AWS_PROFILE to one of that account"
            )
        return found

    @property
    def account(self) -> str:
        """Id of the account."""
        return self.identity["Account"]

    def _boto_client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config

        retries: Any = {"mode": "adaptive", "total_max_attempts": TRIES}
        config = Config(
            retries=retries, connect_timeout=10, read_timeout=60, user_agent_appid="trn2-speculation"
        )
        return boto3.Session().client(service, region_name=self.region, config=config)


class Calls:
    """A boto3 client of which every operation raises `AwsError` instead of what botocore has.

    Operations are called as on the client: `client("eks").describe_cluster(name=...)`.
    """

    def __init__(self, service: str, region: str, make: Callable[[], Any]) -> None:
        self._service, self._region, self._make = service, region, make

    @cached_property
    def _client(self) -> Any:
        return self._guarded("CreateClient", self._make)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return lambda **parameters: self._guarded(
            _camel(operation), lambda: getattr(self._client, operation)(**parameters)
        )

    def every(self, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """The items under `key` of all pages of an operation."""
        pages = iter(self._client.get_paginator(operation).paginate(**parameters))
        while True:
            page = self._guarded(_camel(operation), lambda: next(pages, None))
            if page is None:
                return
            yield from page.get(key, ())

    def _guarded(self, operation: str, call: Callable[[], Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        from operations.aws_errors import translate

        try:
            return call()
        except (BotoCoreError, ClientError) as error:
            action = f"{self._service}:{operation}"
            raise translate(error, action=action, region=self._region) from error


def _camel(operation: str) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))
