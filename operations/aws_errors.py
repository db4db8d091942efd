"""What botocore raises, as one line with what to do about it.

Codes: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html and the services' own lists.
"""

from __future__ import annotations

import re
from typing import Any

from botocore import exceptions as faults

from experiment.finding import Outside

EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
UNKNOWN_KEYS = {
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
NOT_ALLOWED = {
    "AccessDenied",
    "AccessDeniedException",
    "Client.UnauthorizedOperation",
    "Forbidden",
    "UnauthorizedOperation",
    "403",
}
THROTTLED = {
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
NOT_ENABLED = {
    "OptInRequired",
    "InvalidRegion",
    "IllegalLocationConstraintException",
    "RegionDisabledException",
}
BUSY = {
    "InternalError",
    "InternalFailure",
    "ServerException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}

_ACTION = re.compile(r"not authorized to perform:? ([\w-]+:\w+)(?: on resource:? ([^\s,]+))?")
_NO_CREDENTIALS = (
    faults.NoCredentialsError,
    faults.PartialCredentialsError,
    faults.CredentialRetrievalError,
)
_STALE_LOGIN = (
    faults.SSOError,
    faults.TokenRetrievalError,
    faults.LoginError if hasattr(faults, "LoginError") else faults.SSOError,
)
_UNREACHABLE = (faults.HTTPClientError, faults.ConnectionError)


class AwsError(Outside):
    """A call that AWS refused or never got; `code` is the service's own word for it, empty when it never answered."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def translate(error: Exception, *, action: str, region: str) -> AwsError:
    """The line for what botocore raised when `action` (e.g. `eks:DescribeCluster`) was called in `region`."""
    if isinstance(error, faults.ClientError):
        return _refusal(error, action=action, region=region)
    if isinstance(error, _NO_CREDENTIALS):
        return AwsError(
            f"{action} in {region}: no AWS credentials on this machine; run `aws sso login` or `aws configure`, or set "
            "AWS_PROFILE"
        )
    if isinstance(error, faults.ProfileNotFound):
        return AwsError(f"{action} in {region}: {error}; set AWS_PROFILE to one of ~/.aws/config")
    if isinstance(error, _STALE_LOGIN):
        return AwsError(
            f"{action} in {region}: the login has expired ({_short(error)}); run `aws sso login` again"
        )
    if isinstance(error, faults.NoRegionError | faults.InvalidRegionError):
        return AwsError(f"{action}: region {region!r} is none; set cluster.region of the experiment")
    if isinstance(error, _UNREACHABLE):
        return AwsError(
            f"{action} in {region}: the endpoint cannot be reached ({_short(error)}); check cluster.region, network and "
            "proxy, then run this again"
        )
    return AwsError(f"{action} in {region}: {_short(error)}; fix what it names, then run this again")


def foreign(why: str, *, action: str, region: str) -> AwsError:
    """The line for an answer with status 200 that AWS did not give, or a client that could not be made."""
    if action.endswith(":CreateClient"):
        return AwsError(
            f"{action} in {region}: cannot be made ({_cut(_flat(why), 120)}); check AWS_PROFILE, AWS_ENDPOINT_URL and "
            "~/.aws/config"
        )
    return AwsError(
        f"{action} in {region}: the answer is not one of AWS ({_cut(_flat(why), 120)}); check AWS_ENDPOINT_URL, network and "
        "proxy, then run this again"
    )


def _refusal(error: Any, *, action: str, region: str) -> AwsError:
    body = error.response.get("Error", {})
    code, message = str(body.get("Code", "")), _flat(str(body.get("Message", "")))
    where = f"{action} in {region}"
    if code in EXPIRED:
        text = f"{where}: the credentials have expired; log in again (`aws sso login`), then run this again"
    elif code in UNKNOWN_KEYS:
        text = (
            f"{where}: AWS does not know these credentials ({code}); check AWS_PROFILE, the keys behind it, and that the "
            "account has this region enabled"
        )
    elif code in NOT_ALLOWED:
        named = _ACTION.search(message)
        right = named[1] if named else action
        resource = f" on {named[2]}" if named and named[2] and named[2] != "*" else ""
        text = f"{where}: not allowed; let whoever runs this do {right}{resource}, or use another AWS_PROFILE"
    elif code in THROTTLED and (
        "hrottl" in code + message or "ate exceeded" in message or code != "LimitExceededException"
    ):
        text = f"{where}: AWS throttles the account, also after several tries; wait a minute, then run this again"
    elif code in NOT_ENABLED:
        text = f"{where}: the account does not have this region; enable it, or change cluster.region of the experiment"
    elif code in BUSY:
        text = f"{where}: AWS failed ({code}); wait a minute, then run this again"
    elif message.startswith("<"):
        text = f"{where}: a page answers with HTTP {code}, not AWS; check AWS_ENDPOINT_URL, network and proxy"
    else:
        text = f"{where}: {code}: {_cut(message)}"
    return AwsError(text, code)


def _short(error: Exception) -> str:
    return _cut(_flat(str(error)), 120)


def _cut(text: str, most: int = 300) -> str:
    """A proxy between us and AWS may answer with a page."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _flat(text: str) -> str:
    """Whatever sent it, a terminal gets one line without control characters."""
    text = " ".join(text.split()).rstrip(".")
    return "".join(character if character.isprintable() else "?" for character in text)
