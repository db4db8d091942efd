"""Each way in which AWS refuses is one line with its remedy."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions as faults

from operations.cloud.aws import Aws, AwsError, translate

EXPIRED = "the credentials have expired; log in again"
UNKNOWN = "AWS does not know these credentials"
THROTTLED = "AWS throttles the account, also after several tries"
ABSENT = "no AWS credentials on this machine"
LOG_IN = "run `aws sso login` again"
UNREACHED = "the endpoint cannot be reached"
REFUSALS = {
    "ExpiredToken": EXPIRED,
    "RequestExpired": EXPIRED,
    "UnrecognizedClientException": UNKNOWN,
    "AuthFailure": UNKNOWN,
    "ThrottlingException": THROTTLED,
    "RequestLimitExceeded": THROTTLED,
    "OptInRequired": "the account does not have this region; enable it, or change cluster.region",
    "ServiceUnavailable": "AWS failed (ServiceUnavailable); wait a minute",
    "InvalidParameterException": "InvalidParameterException: no such thing",
    "AccessDenied": "let the caller do eks:DescribeCluster",
}
FAULTS: list[tuple[Exception, str]] = [
    (faults.NoCredentialsError(), f"{ABSENT}; run `aws sso login`"),
    (faults.PartialCredentialsError(provider="env", cred_var="key"), ABSENT),
    (faults.ProfileNotFound(profile="mine"), "set AWS_PROFILE to one of ~/.aws/config"),
    (faults.UnauthorizedSSOTokenError(), LOG_IN),
    (faults.TokenRetrievalError(provider="sso", error_msg="old"), LOG_IN),
    (faults.EndpointConnectionError(endpoint_url="https://x"), UNREACHED),
    (faults.ConnectTimeoutError(endpoint_url="https://x"), UNREACHED),
    (faults.ProxyConnectionError(proxy_url="http://p"), "check cluster.region, network and proxy"),
    (faults.SSLError(endpoint_url="https://x", error="cert"), UNREACHED),
    (faults.InvalidRegionError(region_name="x y"), "set cluster.region of the experiment"),
    (faults.ParamValidationError(report="bad"), "fix what it names"),
]


def _refused(code: str, message: str = "no such thing") -> AwsError:
    error = faults.ClientError({"Error": {"Code": code, "Message": message}}, "DescribeCluster")
    return translate(error, action="eks:DescribeCluster", region="us-east-2")


def test_a_refusal_or_a_fault_of_the_way_there_is_one_line_with_what_to_do() -> None:
    for code, says in REFUSALS.items():
        error = _refused(code)
        assert str(error).startswith("eks:DescribeCluster in us-east-2: ")
        assert (error.code, error.exit_code, says in str(error)) == (code, 3, True), error
    for fault, says in FAULTS:
        line = str(translate(fault, action="sts:GetCallerIdentity", region="us-east-2"))
        assert (says in line, "\n" in line) == (True, False), line
    page = str(_refused("407", "<!doctype html> <html lang=en> <h1>Log in</h1>"))
    assert page.endswith("a page answers with HTTP 407, not AWS; check AWS_ENDPOINT_URL, network and proxy")
    assert len(str(_refused("SomeException", "x" * 5000))) < 400
    who = "User: arn:aws:iam::111122223333:user/me is not authorized to perform: "
    denied = str(_refused("AccessDeniedException", f"{who}iam:PassRole on resource: role/x\nbecause"))
    assert "let the caller do iam:PassRole on role/x, or use" in denied


def test_calls_and_pages_raise_nothing_else(account: None) -> None:
    with pytest.raises(AwsError) as caught:
        Aws("us-east-2").client("eks").describe_cluster(name="none")
    assert caught.value.code == "ResourceNotFoundException"
    stacks = Aws("us-east-2").client("cloudformation")
    with pytest.raises(AwsError, match="cloudformation:DescribeStackEvents"):
        list(stacks.every("describe_stack_events", "StackEvents", StackName="none"))


def test_throttling_is_retried_before_it_is_told(credentials: None) -> None:
    client: Any = Aws("us-east-2").client("eks")._client
    assert client.meta.config.retries == {"mode": "standard", "total_max_attempts": 8}
