"""The account and the region of one experiment, and calls into it whose failures are one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from experiment.finding import Finding, Refusal
from operations.answers import NotAnAnswerError, checked, refuse_foreign
from operations.aws_errors import AwsError, foreign, translate

_PATIENT: Any = {
    "retries": {"mode": "adaptive", "total_max_attempts": 8},
    "connect_timeout": 10,
    "read_timeout": 60,
}
"""A call is tried so often before throttling is reported; botocore's adaptive mode waits longer after each time."""
_HURRIED: Any = {
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 4,
    "read_timeout": 8,
}


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
        self._limits = _PATIENT

    def client(self, service: str) -> Calls:
        """Calls to a service in the experiment's region."""
        if self._expected and service != "sts":
            _ = self.identity  # refused before anything else is asked
        if service not in self._clients:
            self._clients[service] = Calls(service, self.region, lambda: self._make(service))
        return self._clients[service]

    @cached_property
    def identity(self) -> dict[str, str]:
        """`Account` and `Arn` of the caller. Raises `Refusal` when it is not the expected account."""
        answer = self.client("sts").get_caller_identity()
        found = {"Account": str(answer["Account"]), "Arn": str(answer["Arn"])}
        if self._expected and found["Account"] != self._expected:
            why = f"these credentials are not of {self._expected}, which --account names"
            remedy = "set AWS_PROFILE to one of that account"
            raise Refusal(Finding(f"account {found['Account']}", None, why, remedy))
        return found

    @property
    def account(self) -> str:
        """Id of the account."""
        return self.identity["Account"]

    def hurry(self) -> None:
        """From now on give up soon: somebody waits for the answer, or pays while it does not come."""
        if self._limits is not _HURRIED:
            self._limits = _HURRIED
            self._clients.clear()

    def _boto_client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(**self._limits, user_agent_appid="trn2-speculation")
        return boto3.Session().client(service, region_name=self.region, config=config)


class Calls:
    """A boto3 client of which every operation raises `AwsError` instead of what botocore has.

    Operations are called as on the client: `client("eks").describe_cluster(name=...)`.
    """

    def __init__(self, service: str, region: str, make: Callable[[], Any]) -> None:
        self._service, self._region, self._make = service, region, make

    @cached_property
    def _client(self) -> Any:
        client = self._guarded("CreateClient", self._make)
        client.meta.events.register("before-parse", refuse_foreign, unique_id="operations-refuse-foreign")
        return client

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return lambda **parameters: self._answer(
            operation, lambda: getattr(self._client, operation)(**parameters)
        )

    def find(self, operation: str, *absent: str, **parameters: Any) -> Any:
        """The answer; nothing where AWS refuses with one of the codes `absent`."""
        try:
            return getattr(self, operation)(**parameters)
        except AwsError as error:
            if error.code in absent:
                return None
            raise

    def every(self, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """The items under `key` of all pages of an operation."""
        pages = iter(self._client.get_paginator(operation).paginate(**parameters))
        while (page := self._answer(operation, lambda: next(pages, None))) is not None:
            yield from page.get(key, ())

    def _answer(self, operation: str, call: Callable[[], Any]) -> Any:
        """What `call` gives, as an answer of the operation; its body, where it has one, is read under guard too."""
        name = self._client.meta.method_to_api_mapping[operation]
        model = self._client.meta.service_model.operation_model(name)

        def asked() -> Any:
            if (answer := call()) is None:  # after the last page
                return None
            return checked(answer, model, lambda key: self._foreign(name, f"it has no {key}"))

        answer = self._guarded(name, asked)
        if answer is not None and hasattr(answer.get("Body"), "read"):
            read = answer["Body"].read
            answer["Body"] = SimpleNamespace(
                read=lambda amount=None: self._guarded(name, lambda: read(amount))
            )
        return answer

    def _guarded(self, operation: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (BotoCoreError, ClientError) as error:
            action = f"{self._service}:{operation}"
            raise translate(error, action=action, region=self._region) from error
        except (Refusal, MemoryError):
            raise
        except Exception as error:  # botocore's parsers raise anything for an answer that is not AWS's
            why = str(error) if isinstance(error, NotAnAnswerError) else f"{type(error).__name__}: {error}"
            raise self._foreign(operation, why) from error

    def _foreign(self, operation: str, why: str) -> Refusal:
        return foreign(why, action=f"{self._service}:{operation}", region=self._region)
