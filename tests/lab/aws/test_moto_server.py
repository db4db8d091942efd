"""The loopback server: reachable by made-up keys alone, empty at the start, nothing left behind.

A server that stays up after the rehearsal: what the stacks left can be asked for, and more can be added.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.cloudformation import parsing

from experiment.finding import Outside, Refusal
from lab.aws.moto_server import child_environment, client, rehearsal_server
from lab.aws.rehearsal import rehearse
from tests.lab.aws.assemblies import REGION


def test_real_credentials_profile_and_proxy_are_never_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAREALREALREALREAL",
        "AWS_SECRET_ACCESS_KEY": "real",
        "AWS_SESSION_TOKEN": "real",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": "production",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    with rehearsal_server() as endpoint:
        s3 = client("s3", endpoint=endpoint, region=REGION)
        s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
        signed = s3.generate_presigned_url("get_object", Params={"Bucket": "mine", "Key": "k"})
    assert signed.startswith(f"{endpoint}/mine/k?")
    assert "AKIAREAL" not in signed
    assert "Security-Token" not in signed


def test_a_child_process_reaches_the_server_through_its_environment_alone() -> None:
    program = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"
    base = {**os.environ, "AWS_PROFILE": "production", "AWS_SESSION_TOKEN": "real", "no_proxy": "example.com"}
    with rehearsal_server() as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=child_environment(base, endpoint=endpoint, region=REGION),
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == "123456789012"


def test_each_server_starts_empty_and_leaves_environment_and_moto_as_they_were() -> None:
    environment, choice = dict(os.environ), vars(parsing)["resource_class_from_type"]
    for _ in range(2):
        with rehearsal_server() as endpoint:
            s3 = client("s3", endpoint=endpoint, region=REGION)
            assert s3.list_buckets()["Buckets"] == []
            s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
            assert vars(parsing)["resource_class_from_type"] is not choice
            with pytest.raises(Outside, match="one is running"), rehearsal_server():
                pass
        assert vars(parsing)["resource_class_from_type"] is choice
        assert dict(os.environ) == environment


@pytest.fixture(scope="module")
def endpoint(three_stacks: Path) -> Iterator[str]:
    """A server into which the three stacks have been deployed."""
    with rehearsal_server() as address:
        rehearse(three_stacks, region=REGION, endpoint=address)
        yield address


def test_a_reference_to_what_is_not_modelled_says_so(endpoint: str) -> None:
    ec2 = client("ec2", endpoint=endpoint, region=REGION)
    (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
    answer = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
    data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["Placement"]["GroupName"] == "not-modelled-Together"


def test_the_cluster_security_group_is_a_real_one_in_the_vpc(endpoint: str) -> None:
    cluster = client("eks", endpoint=endpoint, region=REGION).describe_cluster(name="trainium")["cluster"]
    network = cluster["resourcesVpcConfig"]
    ec2 = client("ec2", endpoint=endpoint, region=REGION)
    (group,) = ec2.describe_security_groups(GroupIds=[network["clusterSecurityGroupId"]])["SecurityGroups"]
    assert group["VpcId"] == network["vpcId"]
    assert cluster["tags"] == {"team": "llm"}


def test_a_server_that_is_not_empty_is_refused(endpoint: str, three_stacks: Path) -> None:
    with pytest.raises(Refusal, match="must be running, and empty") as caught:
        rehearse(three_stacks, region=REGION, endpoint=endpoint)
    assert "\n" not in str(caught.value)
