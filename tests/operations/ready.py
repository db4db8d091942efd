"""An account in which a deployment may begin; what moto lacks is answered in the shapes of EKS, EC2 and Service Quotas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT

from infra.pins import ADDON_VERSIONS
from tests.conftest import ROOT
from tests.infra.pipeline.iam import committed
from tests.operations.clients import REGION, says, shared_client
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.runtimes import images_of

POLICIES = ROOT / "infra" / "bootstrap" / "policies.yaml"
BOUNDARY = "speculation-boundary"
ANYTHING = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]
"""AdministratorAccess, which `cdk bootstrap` gives to CloudFormation if nobody names a policy."""


def bootstrap(*statements: dict[str, Any], boundary: bool = False) -> None:
    """What `cdk bootstrap` leaves, with these statements or our own policy for CloudFormation."""
    ssm, iam = shared_client("ssm"), shared_client("iam")
    ssm.put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="28", Type="String", Overwrite=True)
    name, edge = f"cdk-hnb659fds-cfn-exec-role-{ACCOUNT}-{REGION}", {}
    if boundary:
        made = iam.create_policy(PolicyName=BOUNDARY, PolicyDocument=_document(_own("Boundary")))
        edge = {"PermissionsBoundary": made["Policy"]["Arn"]}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}", **edge)
    given = list(statements) or _own("Execution")
    iam.put_role_policy(RoleName=name, PolicyName="execution", PolicyDocument=_document(given))


def _own(name: str) -> list[dict[str, Any]]:
    return committed(POLICIES, name, AWS__AccountId=ACCOUNT)


def _document(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@dataclass
class Offers:
    """What EKS, EC2 and Service Quotas say; by default what an experiment has pinned."""

    experiment: Experiment
    vcpus: float = 1000
    zone: str = ""
    addons: dict[str, str] = field(default_factory=dict)
    """Versions in the place of those that are pinned."""

    def quota(self) -> dict[str, Any]:
        return {"Quota": {"Value": self.vcpus}}

    def place(self) -> dict[str, Any]:
        zone = self.zone or self.experiment.cluster.trn2_zone
        return {"InstanceTypeOfferings": [{"InstanceType": self.experiment.instance.name, "Location": zone}]}

    def versions(self) -> dict[str, Any]:
        told = {"clusterVersion": self.experiment.cluster.kubernetes, "versionStatus": "STANDARD_SUPPORT"}
        return {"clusterVersions": [told]}

    def offered(self) -> dict[str, Any]:
        pinned = {**ADDON_VERSIONS[self.experiment.cluster.kubernetes], **self.addons}.items()
        return {
            "addons": [{"addonName": name, "addonVersions": [{"addonVersion": one}]} for name, one in pinned]
        }

    def images(self) -> dict[str, Any]:
        version, image = self.experiment.cluster.kubernetes, self.experiment.node_image
        assert image is not None
        releases = {"neuron": image.date, "standard": images_of(version)[0].date}.items()
        return {
            "Images": [
                {"Name": f"amazon-eks-node-al2023-x86_64-{kind}-{version}-v{date}"} for kind, date in releases
            ]
        }


@contextmanager
def offering(experiment: Experiment) -> Iterator[Offers]:
    """As long as it lasts, they say so; moto does not have most of it."""
    offers = Offers(experiment)
    with (
        says("eks", DescribeClusterVersions=offers.versions, DescribeAddonVersions=offers.offered),
        says("ec2", DescribeImages=offers.images, DescribeInstanceTypeOfferings=offers.place),
        says("service-quotas", GetServiceQuota=offers.quota),
    ):
        yield offers
