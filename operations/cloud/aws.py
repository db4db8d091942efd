"""The account and the region of one experiment, and calls into it whose failures are one line.

Codes: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html and the services' own lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from botocore import exceptions as faults

from experiment import Experiment
from experiment.finding import Finding, Outside, Refusal, shortened
from operations.cloud.answers import checked

NOT_ALLOWED = re.compile(r"AccessDenied(Exception)?|(Client\.)?UnauthorizedOperation|Forbidden|403")
_EXPIRED = re.compile(r"ExpiredToken(Exception)?|RequestExpired|TokenRefreshRequired")
_UNKNOWN_KEYS = re.compile(
    r"AuthFailure|IncompleteSignature|InvalidAccessKeyId|InvalidClientTokenId|InvalidSignatureException|"
    r"SignatureDoesNotMatch|UnrecognizedClientException"
)
_THROTTLED = re.compile(
    r"(Request)?Throttl(ed|ing)(Exception)?|BandwidthLimitExceeded|PriorRequestNotComplete|RequestLimitExceeded|"
    r"SlowDown|TooManyRequestsException"
)
_NOT_ENABLED = re.compile(
    r"OptInRequired|InvalidRegion|IllegalLocationConstraintException|RegionDisabledException"
)
_BUSY = re.compile(r"InternalError|InternalFailure|ServerException|ServiceUnavailable(Exception)?")
_ACTION = re.compile(r"not authorized to perform:? ([\w-]+:\w+)(?: on resource:? ([^\s,]+))?")
_NO_CREDENTIALS = faults.NoCredentialsError, faults.PartialCredentialsError, faults.CredentialRetrievalError
_STALE_LOGIN = faults.SSOError, faults.TokenRetrievalError, faults.LoginError
_UNREACHABLE = faults.HTTPClientError, faults.ConnectionError


class AwsError(Outside):
    """A call that AWS refused or never got; `code` is the service's own word for it, empty when it never answered."""

    def __init__(self, finding: Finding | str, code: str = "") -> None:
        super().__init__(finding)
        self.code = code


def translate(error: Exception, *, action: str, region: str) -> AwsError:
    """What botocore raised when `action` (e.g. `eks:DescribeCluster`) was called in `region`."""
    where = f"{action} in {region}"
    if isinstance(error, faults.ClientError):
        body = error.response.get("Error", {})
        code = str(body.get("Code", ""))
        why, remedy = _refusal(code, _flat(str(body.get("Message", ""))), action)
        return AwsError(Finding(where, None, why, remedy), code)
    if isinstance(error, faults.NoRegionError | faults.InvalidRegionError):
        why = f"region {region!r} is none"
        return AwsError(Finding(action, None, why, "set cluster.region of the experiment"))
    return AwsError(Finding(where, None, *_fault(error)))


def _fault(error: Exception) -> tuple[str, str]:
    if isinstance(error, _NO_CREDENTIALS):
        remedy = "run `aws sso login` or `aws configure`, or set AWS_PROFILE"
        return "no AWS credentials on this machine", remedy
    if isinstance(error, faults.ProfileNotFound):
        return str(error), "set AWS_PROFILE to one of ~/.aws/config"
    if isinstance(error, _STALE_LOGIN):
        return f"the login has expired ({_short(error)})", "run `aws sso login` again"
    if isinstance(error, _UNREACHABLE):
        why = f"the endpoint cannot be reached ({_short(error)})"
        return why, "check cluster.region, network and proxy, then run this again"
    return _short(error), "fix what it names, then run this again"


def foreign(why: str, *, action: str, region: str) -> AwsError:
    """The finding for an answer with status 200 that AWS did not give, or a client that could not be made."""
    why = shortened(_flat(why), 120)
    if action.endswith(":CreateClient"):
        why = f"cannot be made ({why})"
        remedy = "check AWS_PROFILE, AWS_ENDPOINT_URL and ~/.aws/config"
    else:
        why = f"the answer is not one of AWS ({why})"
        remedy = "check AWS_ENDPOINT_URL, network and proxy, then run this again"
    return AwsError(Finding(f"{action} in {region}", None, why, remedy))


def _refusal(code: str, message: str, action: str) -> tuple[str, str]:
    """Why AWS refused, and what to do."""
    if _EXPIRED.fullmatch(code):
        return "the credentials have expired", "log in again (`aws sso login`), then run this again"
    if _UNKNOWN_KEYS.fullmatch(code):
        remedy = "check AWS_PROFILE, the keys behind it, and that the account has this region enabled"
        return f"AWS does not know these credentials ({code})", remedy
    if NOT_ALLOWED.fullmatch(code):
        named = _ACTION.search(message)
        right = named[1] if named else action
        resource = f" on {named[2]}" if named and named[2] and named[2] != "*" else ""
        return "not allowed", f"let the caller do {right}{resource}, or use another AWS_PROFILE"
    if _THROTTLED.fullmatch(code) or "ate exceeded" in message:
        return "AWS throttles the account, also after several tries", "wait a minute, then run this again"
    if _NOT_ENABLED.fullmatch(code):
        return (
            "the account does not have this region",
            "enable it, or change cluster.region of the experiment",
        )
    if _BUSY.fullmatch(code):
        return f"AWS failed ({code})", "wait a minute, then run this again"
    if message.startswith("<"):
        return f"a page answers with HTTP {code}, not AWS", "check AWS_ENDPOINT_URL, network and proxy"
    return f"{code}: {shortened(message, 300)}", ""


def _short(error: Exception) -> str:
    return shortened(_flat(str(error)), 120)


def _flat(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


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
    `keys` are temporary credentials as STS gives them, in the place of the caller's own.
    `make_client` gives a boto3 client for a service's name; the tests hand in their own.
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
        session = boto3.Session(
            aws_access_key_id=self._keys.get("AccessKeyId"),
            aws_secret_access_key=self._keys.get("SecretAccessKey"),
            aws_session_token=self._keys.get("SessionToken"),
        )
        return session.client(service, region_name=self.region, config=config)


def aws_of(experiment: Experiment, account: str | None) -> Aws:
    """AWS in the experiment's region, with the account that the command line names."""
    return Aws(experiment.cluster.region, account=account)


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
        if (found := self._guarded(name, call)) is None:  # after the last page
            return None
        answer = checked(found, lambda key: self._foreign(name, f"it has no {key}"))
        if hasattr(answer.get("Body"), "read"):
            read = answer["Body"].read
            answer["Body"] = SimpleNamespace(
                read=lambda amount=None: self._guarded(name, lambda: read(amount))
            )
        return answer

    def _guarded(self, operation: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (faults.BotoCoreError, faults.ClientError) as error:
            action = f"{self._service}:{operation}"
            raise translate(error, action=action, region=self._region) from error
        except (Refusal, MemoryError):
            raise
        except Exception as error:  # botocore's parsers raise anything for an answer that is not AWS's
            raise self._foreign(operation, f"{type(error).__name__}: {error}") from error

    def _foreign(self, operation: str, why: str) -> Refusal:
        return foreign(why, action=f"{self._service}:{operation}", region=self._region)
