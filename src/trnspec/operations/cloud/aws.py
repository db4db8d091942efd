"""Calls to AWS in the account and region of one experiment. Each failure becomes one line.

Codes: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html and the services' own lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from botocore import exceptions as faults

from infra.deployment_file import read_deployment
from infra.synthesis import DEPLOYMENT
from trnspec.core.findings import Finding, Outside, Refusal
from trnspec.core.safe_output import shortened
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.models import table_of

NOT_ALLOWED = re.compile(r"AccessDenied(Exception)?|(Client\.)?UnauthorizedOperation|Forbidden|403")
_ACTION = re.compile(r"not authorized to perform:? ([\w-]+:\w+)(?: on resource:? ([^\s,]+))?")
_LONG_TIMEOUTS, _SHORT_TIMEOUTS = (
    {
        "retries": {"mode": "standard", "total_max_attempts": tries},
        "connect_timeout": connect_s,
        "read_timeout": read_s,
    }
    for tries, connect_s, read_s in ((8, 10, 60), (2, 4, 8))
)


class AwsError(Outside):
    """A call that AWS refused or did not answer; `code` is the service's error code, empty without an answer."""

    def __init__(self, finding: Finding | str, code: str = "") -> None:
        super().__init__(finding)
        self.code = code


def translate(error: Exception, *, action: str, region: str) -> AwsError:
    """Return the error for what botocore raised when `action` (e.g. `eks:DescribeCluster`) was called in `region`."""
    code = ""
    if isinstance(error, faults.ClientError):
        body = error.response.get("Error", {})
        code = str(body.get("Code", ""))
        why, remedy = _refused(code, _flat(body.get("Message", "")), action)
    else:
        names = {kind.__name__ for kind in type(error).__mro__}
        why, remedy = _meaning("faults", names, shortened(_flat(error), 120)) or (_flat(error), "")
    return AwsError(Finding(f"{action} in {region}", None, why, remedy), code)


def _refused(code: str, message: str, action: str) -> tuple[str, str]:
    if NOT_ALLOWED.fullmatch(code):
        named = _ACTION.search(message)
        resource = f" on {named[2]}" if named and named[2] and named[2] != "*" else ""
        right = f"{named[1] if named else action}{resource}"
        return "not allowed", f"let the caller do {right}, or use another AWS_PROFILE"
    if message.startswith("<"):
        return f"a page answers with HTTP {code}, not AWS", "check AWS_ENDPOINT_URL, network and proxy"
    name = "Throttling" if "ate exceeded" in message else code
    return _meaning("codes", {name}, code) or (f"{code}: {shortened(message, 300)}", "")


def _meaning(kind: str, names: set[str], said: str) -> tuple[str, str] | None:
    """Return the reason and the remedy of the first entry of `aws.yaml` with one of these names."""
    found = next((entry for entry in _meanings()[kind] if not names.isdisjoint(entry["names"])), None)
    return (found["why"].format(said=said), found["remedy"]) if found else None


@cache
def _meanings() -> dict[str, list[dict[str, Any]]]:
    return dict(table_of(__file__))


def _flat(text: object) -> str:
    return " ".join(str(text).split()).rstrip(".")


class Aws:
    """The clients of a verb, with its account and region.

    `account` is the id that deployment.yaml names: credentials of another account are refused before any other call. `keys` are
    temporary credentials of STS, which replace the caller's. `make_client` returns a boto3 client by the name of its service.
    """

    def __init__(
        self,
        region: str,
        *,
        account: str | None = None,
        keys: Mapping[str, str] | None = None,
        make_client: Callable[[str], Any] | None = None,
    ) -> None:
        self.region = region
        self._keys = keys or {}
        self._expected = account
        self._make = make_client or self._boto_client
        self._clients: dict[str, CheckedClient] = {}
        self._limits: dict[str, Any] = _LONG_TIMEOUTS

    def client(self, service: str) -> CheckedClient:
        if self._expected and service != "sts":
            _ = self.identity
        if service not in self._clients:
            self._clients[service] = CheckedClient(service, self.region, lambda: self._make(service))
        return self._clients[service]

    @cached_property
    def identity(self) -> dict[str, str]:
        """Return `Account` and `Arn` of the caller. Raises `Refusal` if it is not the expected account."""
        answer = self.client("sts").get_caller_identity()
        if self._expected and answer["Account"] != self._expected:
            why = f"these credentials are not of {self._expected}, which {DEPLOYMENT.name} names"
            remedy = "set AWS_PROFILE to one of that account"
            raise Refusal(Finding(f"account {answer['Account']}", None, why, remedy))
        return {"Account": answer["Account"], "Arn": answer["Arn"]}

    @property
    def account(self) -> str:
        return self.identity["Account"]

    def shorten_timeouts(self) -> None:
        """Use short timeouts from now on: a person waits, or nodes are billed until the answer."""
        if self._limits is not _SHORT_TIMEOUTS:
            self._limits = _SHORT_TIMEOUTS
            self._clients.clear()

    def in_region(self, region: str) -> Aws:
        """Return the same caller in another region, with short timeouts."""
        if self._expected:
            _ = self.identity
        other = Aws(region, keys=self._keys)
        other._limits = _SHORT_TIMEOUTS
        return other

    def _boto_client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config

        session = boto3.Session(
            aws_access_key_id=self._keys.get("AccessKeyId"),
            aws_secret_access_key=self._keys.get("SecretAccessKey"),
            aws_session_token=self._keys.get("SessionToken"),
        )
        config = Config(**self._limits, user_agent_appid="trn2-speculation")
        return session.client(service, region_name=self.region, config=config)


def aws_of(experiment: Experiment) -> Aws:
    """Return AWS in the experiment's region, in the account of deployment.yaml. A build of a pipeline's stage has no such file."""
    account = read_deployment(DEPLOYMENT).account if DEPLOYMENT.exists() else None
    return Aws(experiment.cluster.region, account=account)


class CheckedClient:
    """A boto3 client whose operations raise `AwsError` for every failure.

    Operations are called as on the client: `client("eks").describe_cluster(name=...)`. An answer must have the id that AWS gives
    every request, because botocore accepts a login page with status 200 as an empty answer
    (https://github.com/boto/botocore/blob/develop/botocore/parsers.py).
    """

    def __init__(self, service: str, region: str, make: Callable[[], Any]) -> None:
        self._service, self._region, self._make = service, region, make

    @cached_property
    def _client(self) -> Any:
        return self._guarded("CreateClient", self._make)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return lambda **parameters: self._ask(
            operation, lambda: getattr(self._client, operation)(**parameters)
        )

    def find(self, operation: str, *absent: str, **parameters: Any) -> Any:
        """Return the answer, or None if AWS refuses with one of the codes `absent`."""
        try:
            return getattr(self, operation)(**parameters)
        except AwsError as error:
            if error.code in absent:
                return None
            raise

    def paginate(self, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """Yield the items under `key` of all pages of an operation."""
        pages = iter(self._client.get_paginator(operation).paginate(**parameters))
        while (page := self._ask(operation, lambda: next(pages, None))) is not None:
            yield from page.get(key, ())

    def content(self, max_bytes: int | None = None, **where: str) -> tuple[bytes, str]:
        """Return the content (at most `max_bytes`) and the ETag of an object in S3."""
        answer = self.get_object(**where)
        return self._guarded("GetObject", lambda: answer["Body"].read(max_bytes)), answer["ETag"]

    def _ask(self, operation: str, call: Callable[[], Any]) -> Any:
        name = self._client.meta.method_to_api_mapping[operation]
        answer = self._guarded(name, call)
        about = (answer or {}).get("ResponseMetadata", {})
        if "HTTPHeaders" in about and not about.get("RequestId"):
            raise self._foreign(name, "it has no request id")
        return answer

    def _guarded(self, operation: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (faults.BotoCoreError, faults.ClientError) as error:
            raise translate(error, action=f"{self._service}:{operation}", region=self._region) from error
        except (Refusal, MemoryError):
            raise
        except Exception as error:  # botocore's parsers raise anything for an answer that is not from AWS
            raise self._foreign(operation, f"{type(error).__name__}: {error}") from error

    def _foreign(self, operation: str, said: str) -> AwsError:
        """Return the error for an answer that is not from AWS, or for a client that could not be created."""
        why = "cannot be made" if operation == "CreateClient" else "unexpected answer, not from AWS"
        where, said = f"{self._service}:{operation} in {self._region}", shortened(_flat(said), 120)
        remedy = "check AWS_ENDPOINT_URL, AWS_PROFILE, network and proxy, then run this again"
        return AwsError(Finding(where, None, f"{why} ({said})", remedy))
