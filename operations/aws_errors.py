"""What botocore raises, as one line with what to do about it.

Codes: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html and the services' own lists.
"""

from __future__ import annotations

import re

from botocore import exceptions as faults

from experiment.finding import Finding, Outside, shortened

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
_NO_CREDENTIALS = faults.NoCredentialsError, faults.PartialCredentialsError, faults.CredentialRetrievalError
_STALE_LOGIN = faults.SSOError, faults.TokenRetrievalError, faults.LoginError
_UNREACHABLE = faults.HTTPClientError, faults.ConnectionError


class AwsError(Outside):
    """A call that AWS refused or never got; `code` is the service's own word for it, empty when it never answered."""

    def __init__(self, finding: Finding | str, code: str = "") -> None:
        super().__init__(finding)
        self.code = code


def translate(error: Exception, *, action: str, region: str) -> AwsError:
    """The finding for what botocore raised when `action` (e.g. `eks:DescribeCluster`) was called in `region`."""
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
    if code in EXPIRED:
        return "the credentials have expired", "log in again (`aws sso login`), then run this again"
    if code in UNKNOWN_KEYS:
        remedy = "check AWS_PROFILE, the keys behind it, and that the account has this region enabled"
        return f"AWS does not know these credentials ({code})", remedy
    if code in NOT_ALLOWED:
        named = _ACTION.search(message)
        right = named[1] if named else action
        resource = f" on {named[2]}" if named and named[2] and named[2] != "*" else ""
        return "not allowed", f"let whoever runs this do {right}{resource}, or use another AWS_PROFILE"
    if code in THROTTLED or "ate exceeded" in message:  # a limit of another kind has the same code
        why = "AWS throttles the account, also after several tries"
        return why, "wait a minute, then run this again"
    if code in NOT_ENABLED:
        remedy = "enable it, or change cluster.region of the experiment"
        return "the account does not have this region", remedy
    if code in BUSY:
        return f"AWS failed ({code})", "wait a minute, then run this again"
    if message.startswith("<"):
        remedy = "check AWS_ENDPOINT_URL, network and proxy"
        return f"a page answers with HTTP {code}, not AWS", remedy
    return f"{code}: {shortened(message, 300)}", ""


def _short(error: Exception) -> str:
    return shortened(_flat(str(error)), 120)


def _flat(text: str) -> str:
    """Whatever sent it, a terminal gets one line without control characters."""
    text = " ".join(text.split()).rstrip(".")
    return "".join(character if character.isprintable() else "?" for character in text)
