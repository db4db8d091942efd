"""A server that stays up after the rehearsal: what the stacks left can be asked for, and more can be added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.finding import Refusal
from lab.aws.rehearsal import rehearse
from lab.aws.server import client, rehearsal_server
from tests.lab.aws.assemblies import CLUSTER, NETWORK, REGION, write_assembly


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


def test_metrics_can_be_published_after_the_rehearsal(endpoint: str) -> None:
    cloudwatch = client("cloudwatch", endpoint=endpoint, region=REGION)
    cloudwatch.put_metric_data(Namespace="Speed", MetricData=[{"MetricName": "tpot_s", "Value": 0.015}])
    (metric,) = cloudwatch.list_metrics(Namespace="Speed")["Metrics"]
    assert metric["MetricName"] == "tpot_s"
    assert cloudwatch.get_dashboard(DashboardName="speed")["DashboardName"] == "speed"


def test_a_rehearsal_can_be_in_another_account(endpoint: str, tmp_path: Path) -> None:
    folder = write_assembly(tmp_path, {"network": (NETWORK, ()), "cluster": (CLUSTER, ("network",))})
    rehearse(folder, region=REGION, account="111122223333", endpoint=endpoint)
    eks = client("eks", endpoint=endpoint, region=REGION, account="111122223333")
    arn = eks.describe_cluster(name="trainium")["cluster"]["arn"]
    assert arn == "arn:aws:eks:us-east-2:111122223333:cluster/trainium"


def test_a_server_that_is_not_empty_is_refused(endpoint: str, three_stacks: Path) -> None:
    with pytest.raises(Refusal, match="must be running, and empty") as caught:
        rehearse(three_stacks, region=REGION, endpoint=endpoint)
    assert "\n" not in str(caught.value)
