"""The loopback server: reachable by made-up keys alone, empty at the start, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from moto.cloudformation import parsing

from core.findings import Outside, Refusal
from lab.aws.moto_server import child_environment, client, rehearsal_server
from lab.aws.rehearsal import rehearse
from tests.lab.aws.assemblies import REGION


def test_real_credentials_profile_and_proxy_are_never_used_by_clients_or_child_processes(
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
        "no_proxy": "example.com",
    }.items():
        monkeypatch.setenv(name, value)
    program = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"
    with rehearsal_server() as endpoint:
        s3 = client("s3", endpoint=endpoint, region=REGION)
        s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
        signed = s3.generate_presigned_url("get_object", Params={"Bucket": "mine", "Key": "k"})
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=child_environment(os.environ, endpoint=endpoint, region=REGION),
            capture_output=True,
            text=True,
            check=True,
        )
    assert signed.startswith(f"{endpoint}/mine/k?")
    assert "AKIAREAL" not in signed
    assert "Security-Token" not in signed
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


def test_what_the_stacks_left_can_be_asked_for_and_a_server_that_is_not_empty_is_refused(
    three_stacks: Path,
) -> None:
    with rehearsal_server() as endpoint:
        rehearse(three_stacks, region=REGION, endpoint=endpoint)
        ec2, eks = (client(name, endpoint=endpoint, region=REGION) for name in ("ec2", "eks"))
        (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
        answer = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
        data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        assert data["Placement"]["GroupName"] == "not-modelled-Together"
        cluster = eks.describe_cluster(name="trainium")["cluster"]
        network = cluster["resourcesVpcConfig"]
        groups = ec2.describe_security_groups(GroupIds=[network["clusterSecurityGroupId"]])["SecurityGroups"]
        assert [group["VpcId"] for group in groups] == [network["vpcId"]]
        assert cluster["tags"] == {"team": "llm"}
        with pytest.raises(Refusal, match="must be running, and empty") as caught:
            rehearse(three_stacks, region=REGION, endpoint=endpoint)
        assert "\n" not in str(caught.value)
