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

from core.edge import shortened
from core.findings import Finding, Outside, Refusal
from experiment import Experiment
from infra.deployment_file import read_deployment
from infra.synthesis import DEPLOYMENT

NOT_ALLOWED = re.compile(r"AccessDenied(Exception)?|(Client\.)?UnauthorizedOperation|Forbidden|403")
_ACTION = re.compile(r"not authorized to perform:? ([\w-]+:\w+)(?: on resource:? ([^\s,]+))?")
_REFUSALS = {
    r"ExpiredToken(Exception)?|RequestExpired|TokenRefreshRequired": (
        "the credentials have expired",
        "log in again (`aws sso login`), then run this again",
    ),
    r"AuthFailure|IncompleteSignature|InvalidAccessKeyId|InvalidClientTokenId|InvalidSignatureException|"
    r"SignatureDoesNotMatch|UnrecognizedClientException": (
        "AWS does not know these credentials ({code})",
        "check AWS_PROFILE, the keys behind it, and that the account has this region enabled",
    ),
    r"(Request)?Throttl(ed|ing)(Exception)?|BandwidthLimitExceeded|PriorRequestNotComplete|RequestLimitExceeded|"
    r"SlowDown|TooManyRequestsException": (
        "AWS throttles the account, also after several tries",
        "wait a minute, then run this again",
    ),
    r"OptInRequired|InvalidRegion|IllegalLocationConstraintException|RegionDisabledException": (
        "the account does not have this region",
        "enable it, or change cluster.region of the experiment",
    ),
    r"InternalError|InternalFailure|ServerException|ServiceUnavailable(Exception)?": (
        "AWS failed ({code})",
        "wait a minute, then run this again",
    ),
}
"""Why, and what to do, by the service's code."""
_FAULTS = (
    (
        (faults.NoCredentialsError, faults.PartialCredentialsError, faults.CredentialRetrievalError),
        "no AWS credentials on this machine",
        "run `aws sso login` or `aws configure`, or set AWS_PROFILE",
    ),
    (faults.ProfileNotFound, "{said}", "set AWS_PROFILE to one of ~/.aws/config"),
    (
        (faults.SSOError, faults.TokenRetrievalError, faults.LoginError),
        "the login has expired ({said})",
        "run `aws sso login` again",
    ),
    (
        (faults.HTTPClientError, faults.ConnectionError),
        "the endpoint cannot be reached ({said})",
        "check cluster.region, network and proxy, then run this again",
    ),
    (Exception, "{said}", "fix what it names, then run this again"),
)
"""The same for what botocore raises without an answer."""


class AwsError(Outside):
    """A call that AWS refused or never got; `code` is the service's own word for it, empty when it never answered."""

    def __init__(self, finding: Finding | str, code: str = "") -> None:
        super().__init__(finding)
        self.code = code


class Answer(dict[str, Any]):
    """A mapping of an answer of AWS or of the cluster; a member that it lacks is `lacking`'s error instead of a KeyError.

    A proxy, a hotel's login page or a broken endpoint answer with status 200 as well. Whoever took that for an answer would
    believe that nothing is deployed, that no run is under way, or that nodes were set to 0. botocore makes an answer without a
    member of a page; but AWS gives every request an id, which botocore finds in the headers or in the body of its answer
    (https://github.com/boto/botocore/blob/develop/botocore/parsers.py).
    """

    def __init__(self, content: Mapping[str, Any], lacking: Callable[[str], Exception]) -> None:
        super().__init__(content)
        self._lacking = lacking

    def __missing__(self, key: str) -> Any:
        raise self._lacking(key)


def whole(value: Any, lacking: Callable[[str], Exception]) -> Any:
    """An answer whose mappings know what they lack. Nulls go: Kubernetes takes them for absent."""
    if isinstance(value, dict):
        kept = {key: whole(inner, lacking) for key, inner in value.items() if inner is not None}
        return Answer(kept, lacking)
    return [whole(inner, lacking) for inner in value] if isinstance(value, list) else value


def translate(error: Exception, *, action: str, region: str) -> AwsError:
    """What botocore raised when `action` (e.g. `eks:DescribeCluster`) was called in `region`."""
    where = f"{action} in {region}"
    if isinstance(error, faults.ClientError):
        body = error.response.get("Error", {})
        code = str(body.get("Code", ""))
        why, remedy = _refusal(code, _flat(str(body.get("Message", ""))), action)
        return AwsError(Finding(where, None, why, remedy), code)
    if isinstance(error, faults.NoRegionError | faults.InvalidRegionError):
        why = f"{region!r} is not a region of AWS"
        return AwsError(Finding(action, None, why, "set cluster.region of the experiment"))
    why, remedy = next((why, remedy) for kinds, why, remedy in _FAULTS if isinstance(error, kinds))
    said = shortened(_flat(str(error)), 120)
    return AwsError(Finding(where, None, why.format(said=said), remedy))


def _refusal(code: str, message: str, action: str) -> tuple[str, str]:
    """Why AWS refused, and what to do."""
    if NOT_ALLOWED.fullmatch(code):
        named = _ACTION.search(message)
        right = named[1] if named else action
        resource = f" on {named[2]}" if named and named[2] and named[2] != "*" else ""
        return "not allowed", f"let the caller do {right}{resource}, or use another AWS_PROFILE"
    known = "Throttling" if "ate exceeded" in message else code
    for pattern, (why, remedy) in _REFUSALS.items():
        if re.fullmatch(pattern, known):
            return why.format(code=code), remedy
    if message.startswith("<"):
        return f"a page answers with HTTP {code}, not AWS", "check AWS_ENDPOINT_URL, network and proxy"
    return f"{code}: {shortened(message, 300)}", ""


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

    `account` is the id that the caller expects, as `named_by` says; credentials of another one are refused before anything else is asked.
    `keys` are temporary credentials as STS gives them, in the place of the caller's own.
    `make_client` gives a boto3 client for a service's name; the tests hand in their own.
    """

    def __init__(
        self,
        region: str,
        *,
        account: str | None = None,
        named_by: str = "--account",
        keys: Mapping[str, str] | None = None,
        make_client: Callable[[str], Any] | None = None,
    ) -> None:
        self.region = region
        self._keys = keys or {}
        self._expected, self._named_by = account, named_by
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
            why = f"these credentials are not of {self._expected}, which {self._named_by} names"
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
    """AWS in the experiment's region, with the account that the command line names, else deployment.yaml. A build of a pipeline's
    stage has no such file."""
    region = experiment.cluster.region
    if account is None and DEPLOYMENT.exists() and (named := read_deployment(DEPLOYMENT).account):
        return Aws(region, account=named, named_by=DEPLOYMENT.name)
    return Aws(region, account=account)


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
        answer = whole(found, lambda key: self._foreign(name, f"it has no {key}"))
        about = found.get("ResponseMetadata", {})
        if not about.get("RequestId") and "HTTPHeaders" in about:  # which botocore's Stubber does not make up
            raise self._foreign(name, "it has no request id")
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

    def _foreign(self, operation: str, why: str) -> AwsError:
        """For an answer with status 200 that AWS did not give, or a client that could not be made."""
        said = shortened(_flat(why), 120)
        why, remedy = (
            f"unexpected answer, not from AWS ({said})",
            "check AWS_ENDPOINT_URL, network and proxy, then run this again",
        )
        if operation == "CreateClient":
            why, remedy = f"cannot be made ({said})", "check AWS_PROFILE, AWS_ENDPOINT_URL and ~/.aws/config"
        return AwsError(Finding(f"{self._service}:{operation} in {self._region}", None, why, remedy))
