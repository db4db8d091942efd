"""What bills by the hour in the synthesized templates is what the price of an experiment counts, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.infra.conftest import Variants
from tests.infra.templates import Deployment, Deployments, resolved
from trnspec.experiment import Experiment
from trnspec.experiment.cost import idle, running


def counted(experiment: Experiment) -> dict[str, int]:
    """Units by the first words of what is priced."""
    found: Counter[str] = Counter()
    for item in idle(experiment):
        found[item.item.split(",")[0]] += item.units
    return dict(found)


def deployed(deployment: Deployment) -> dict[str, int]:
    """The same, from the resources that CloudFormation makes."""

    def all_of(type_: str) -> list[dict[str, Any]]:
        return deployment.properties(f"AWS::{type_}")

    clusters = all_of("EKS::Cluster")
    groups = [one for one in all_of("EKS::Nodegroup") if one.get("InstanceTypes")]
    templates = {
        f"<{one.logical_id}>": one.properties["LaunchTemplateData"]
        for one in deployment.resources("AWS::EC2::LaunchTemplate")
    }

    def gib(reference: Any) -> int:
        (disk,) = templates[resolved(reference)]["BlockDeviceMappings"]
        return int(disk["Ebs"]["VolumeSize"])

    found: Counter[str] = Counter()
    for group in groups:
        nodes = group["ScalingConfig"]["DesiredSize"]
        found[group["InstanceTypes"][0]] += nodes
        found["gp3 disk"] += nodes * gib(group["LaunchTemplate"]["Id"])
    for group in all_of("AutoScaling::AutoScalingGroup"):
        template = group["LaunchTemplate"]["LaunchTemplateId"]
        found[templates[resolved(template)]["InstanceType"]] += int(group["DesiredCapacity"])
        found["gp3 disk"] += gib(template)
    found["EKS control plane"] = len(clusters)
    found["NAT gateway"] = len(all_of("EC2::NatGateway"))
    found["public IPv4 address"] = len(all_of("EC2::EIP"))
    found["KMS key"] = len(all_of("KMS::Key"))
    found["metric of an alarm"] = metrics_of_alarms(all_of("CloudWatch::Alarm"))
    found["composite alarm"] = len(all_of("CloudWatch::CompositeAlarm"))
    addons = [one["AddonName"] for one in all_of("EKS::Addon")]
    found["usage: Container Insights"] = addons.count("amazon-cloudwatch-observability")
    found["usage: five logs of the control plane"] = sum(
        len(one["Logging"]["ClusterLogging"]["EnabledTypes"]) == 5 for one in clusters
    )
    found["usage: flow logs"] = len(all_of("EC2::FlowLog"))
    return {name: number for name, number in found.items() if number}


def metrics_of_alarms(alarms: list[dict[str, Any]]) -> int:
    """A query over all cells of an arm, or of all arms, looks at as many metrics as its alarms of single cells list."""
    found, of_arm, queries = 0, Counter[str](), []
    for alarm in alarms:
        listed = sum("MetricStat" in one for one in alarm.get("Metrics", ()))
        found += listed or ("MetricName" in alarm)
        if "-p99-tpot-" in alarm["AlarmName"]:
            of_arm[alarm["AlarmName"].partition("-p99-tpot-")[2]] += listed
        queries += [
            one["Expression"] for one in alarm.get("Metrics", ()) if "SELECT" in one.get("Expression", "")
        ]
    for query in queries:
        arm = query.partition("WHERE Arm = '")[2].rstrip("'")
        found += of_arm[arm] if arm else of_arm.total()
    return found


@pytest.mark.parametrize("name", [name for name in Deployments._fields if name != "wider"])
def test_what_bills_is_what_is_counted(
    name: str, made: Deployments, variants: Variants, experiment: Experiment
) -> None:
    experiment = variants[name][0] if name in variants else experiment
    wanted = deployed(getattr(made, name))
    if name in ("within", "keyed"):  # a key of the account's own, which is none of ours to pay for
        assert wanted.get("KMS key") is None
        wanted["KMS key"] = 3
    assert counted(experiment) == wanted
    trn2, *disk = running(experiment)[: -len(idle(experiment))]
    launch = [
        one["LaunchTemplateData"]
        for one in getattr(made, name).properties("AWS::EC2::LaunchTemplate", "nodes")
    ]
    for one in launch[-1:]:  # of the Trn2 nodes
        assert trn2.item.startswith(f"{one['InstanceType']},")
        sizes = [("gp3 disk, a GiB", one["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] * trn2.units)]
        assert [(item.item, item.units) for item in disk] == sizes
