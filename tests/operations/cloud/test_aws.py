"""Each way in which AWS refuses is one line with its remedy."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions as faults

from operations.cloud.aws import Aws, AwsError, translate

REFUSALS = {
    "ExpiredToken": "the credentials have expired; log in again",
    "RequestExpired": "the credentials have expired; log in again",
    "UnrecognizedClientException": "AWS does not know these credentials",
    "AuthFailure": "AWS does not know these credentials",
    "ThrottlingException": "AWS throttles the account, also after several tries",
    "RequestLimitExceeded": "AWS throttles the account, also after several tries",
    "OptInRequired": "the account does not have this region; enable it, or change cluster.region",
    "ServiceUnavailable": "AWS failed (ServiceUnavailable); wait a minute",
    "InvalidParameterException": "InvalidParameterException: no such thing",
}


def _refused(code: str, message: str = "no such thing") -> AwsError:
    error = faults.ClientError({"Error": {"Code": code, "Message": message}}, "DescribeCluster")
    return translate(error, action="eks:DescribeCluster", region="us-east-2")


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_says_what_to_do(code: str) -> None:
    error = _refused(code)
    assert str(error).startswith("eks:DescribeCluster in us-east-2: ")
    assert REFUSALS[code] in str(error)
    assert error.code == code
    assert error.exit_code == 3


def test_a_page_of_a_proxy_is_not_taken_for_aws() -> None:
    line = str(_refused("407", "<!doctype html> <html lang=en> <h1>Log in</h1>"))
    assert line.endswith("a page answers with HTTP 407, not AWS; check AWS_ENDPOINT_URL, network and proxy")
    assert len(str(_refused("SomeException", "x" * 5000))) < 400


def test_a_missing_permission_is_named_as_the_policy_spells_it() -> None:
    message = "User: arn:aws:iam::111122223333:user/me is not authorized to perform: iam:PassRole on resource: role/x\nbecause"
    assert "let the caller do iam:PassRole on role/x, or use" in str(
        _refused("AccessDeniedException", message)
    )
    assert "let the caller do eks:DescribeCluster" in str(_refused("AccessDenied", "Access Denied"))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (faults.NoCredentialsError(), "no AWS credentials on this machine; run `aws sso login`"),
        (
            faults.PartialCredentialsError(provider="env", cred_var="key"),
            "no AWS credentials on this machine",
        ),
        (faults.ProfileNotFound(profile="mine"), "set AWS_PROFILE to one of ~/.aws/config"),
        (faults.UnauthorizedSSOTokenError(), "run `aws sso login` again"),
        (faults.TokenRetrievalError(provider="sso", error_msg="old"), "run `aws sso login` again"),
        (faults.EndpointConnectionError(endpoint_url="https://x"), "the endpoint cannot be reached"),
        (faults.ConnectTimeoutError(endpoint_url="https://x"), "the endpoint cannot be reached"),
        (faults.ProxyConnectionError(proxy_url="http://p"), "check cluster.region, network and proxy"),
        (faults.SSLError(endpoint_url="https://x", error="cert"), "the endpoint cannot be reached"),
        (faults.InvalidRegionError(region_name="x y"), "set cluster.region of the experiment"),
        (faults.ParamValidationError(report="bad"), "fix what it names"),
    ],
)
def test_what_botocore_raises_by_itself_says_what_to_do(fault: Exception, says: str) -> None:
    line = str(translate(fault, action="sts:GetCallerIdentity", region="us-east-2"))
    assert says in line
    assert "\n" not in line


def test_a_call_raises_nothing_else(account: None) -> None:
    with pytest.raises(AwsError) as caught:
        Aws("us-east-2").client("eks").describe_cluster(name="none")
    assert caught.value.code == "ResourceNotFoundException"


def test_pages_raise_nothing_else(account: None) -> None:
    stacks = (
        Aws("us-east-2")
        .client("cloudformation")
        .every("describe_stack_events", "StackEvents", StackName="none")
    )
    with pytest.raises(AwsError, match="cloudformation:DescribeStackEvents"):
        list(stacks)


def test_a_machine_without_credentials_is_told_so(credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsError, match="no AWS credentials on this machine"):
        _ = Aws("us-east-2").identity


def test_throttling_is_retried_before_it_is_told(credentials: None) -> None:
    client: Any = Aws("us-east-2").client("eks")._client
    assert client.meta.config.retries == {"mode": "adaptive", "total_max_attempts": 8}
