"""A cloud assembly written by hand: three small stacks, one of everything that the rehearsal treats differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REGION = "us-east-2"

CLAIM = {"requests": [{"name": "n", "exactly": {"count": 8, "adminAccess": False}}]}
MANIFEST = (
    {"kind": "Namespace", "metadata": {"name": "serving", "labels": {"on": "yes", "n": "0.10"}}},
    {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": CLAIM}}},
    {"kind": "ConfigMap", "data": {"prompt": 'Say "hello" \\ twice:\n\tgrüße, 你好, 🙂', "empty": ""}},
)
"""Objects whose strings YAML, or a careless resolution of references, would change."""
DASHBOARD = {"widgets": [{"type": "text", "width": 24, "height": 1, "properties": {"markdown": "# TPOT"}}]}

Resource = dict[str, Any]
_TOKEN = {"Fn::GetAtt": ["Kubectl", "Arn"]}


def resource(kind: str, **properties: Any) -> Resource:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def custom(kind: str, **properties: Any) -> Resource:
    return {"Type": f"Custom::{kind}", "Properties": {"ServiceToken": _TOKEN, **properties}}


def role(service: str) -> Resource:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return resource("IAM::Role", AssumeRolePolicyDocument={"Version": "2012-10-17", "Statement": [statement]})


def _exported(value: Resource, name: str) -> Resource:
    return {"Value": value, "Export": {"Name": name}}


def _interface(card: int) -> Resource:
    groups = [{"Fn::GetAtt": ["Cluster", "ClusterSecurityGroupId"]}]
    return {"DeviceIndex": min(card, 1), "NetworkCardIndex": card, "InterfaceType": "efa", "Groups": groups}


NETWORK: Mapping[str, Any] = {
    "Conditions": {"IsChina": {"Fn::Equals": [{"Ref": "AWS::Partition"}, "aws-cn"]}},
    "Resources": {
        "Vpc": resource("EC2::VPC", CidrBlock="10.0.0.0/16"),
        "Subnet": resource(
            "EC2::Subnet", VpcId={"Ref": "Vpc"}, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-2a"
        ),
        "OnlyInChina": {"Type": "AWS::S3::Bucket", "Condition": "IsChina"},
    },
    "Outputs": {"Subnet": _exported({"Ref": "Subnet"}, "network:Subnet")},
}

CLUSTER: Mapping[str, Any] = {
    "Resources": {
        "Role": role("eks.amazonaws.com"),
        "Cluster": resource(
            "EKS::Cluster",
            Name="trainium",
            Version="1.35",
            RoleArn={"Fn::GetAtt": ["Role", "Arn"]},
            ResourcesVpcConfig={
                "SubnetIds": [{"Fn::ImportValue": "network:Subnet"}],
                "EndpointPublicAccess": True,
                "EndpointPrivateAccess": True,
                "PublicAccessCidrs": ["203.0.113.0/24"],
            },
            Tags=[{"Key": "team", "Value": "llm"}],
        ),
        "Barrier": resource("SSM::Parameter", Type="String", Value="ready"),
        "Together": resource("EC2::PlacementGroup", Strategy="cluster"),
        "Launch": resource(
            "EC2::LaunchTemplate",
            LaunchTemplateData={
                "InstanceType": "trn2.48xlarge",
                "Placement": {"GroupName": {"Ref": "Together"}},
                "NetworkInterfaces": [_interface(card) for card in range(16)],
            },
        ),
        "Nodes": resource(
            "EKS::Nodegroup",
            NodegroupName="trn2",
            ClusterName={"Ref": "Cluster"},
            NodeRole={"Fn::GetAtt": ["Role", "Arn"]},
            AmiType="AL2023_x86_64_NEURON",
            Subnets=[{"Fn::ImportValue": "network:Subnet"}],
            ScalingConfig={"MinSize": 0, "DesiredSize": 0, "MaxSize": 1},
            Labels={"example.com/Accelerator": "trn2"},
            Taints=[{"Key": "aws.amazon.com/neuron", "Value": "true", "Effect": "NO_SCHEDULE"}],
            LaunchTemplate={
                "Id": {"Ref": "Launch"},
                "Version": {"Fn::GetAtt": ["Launch", "LatestVersionNumber"]},
            },
        ),
        "Dns": resource("EKS::Addon", AddonName="coredns", ClusterName={"Ref": "Cluster"}),
    },
    "Outputs": {"Name": _exported({"Ref": "Cluster"}, "cluster:Name")},
}

_CODE = {"Fn::Sub": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"}
_NAME = {"Fn::ImportValue": "cluster:Name"}
_LATER = ['[{"kind":"ConfigMap","data":{"on":"', _NAME, '"}}]']
WORKLOADS: Mapping[str, Any] = {
    "Parameters": {
        "BootstrapVersion": {
            "Type": "AWS::SSM::Parameter::Value<String>",
            "Default": "/cdk-bootstrap/hnb659fds/version",
        }
    },
    "Resources": {
        "Role": role("lambda.amazonaws.com"),
        "Kubectl": resource(
            "Lambda::Function",
            Code={"S3Bucket": _CODE, "S3Key": "0123.zip"},
            Handler="index.handler",
            Runtime="python3.13",
            Role={"Fn::GetAtt": ["Role", "Arn"]},
        ),
        "Applied": custom("AWSCDK-EKS-KubernetesResource", ClusterName=_NAME, Manifest=json.dumps(MANIFEST)),
        "AppliedLater": custom(
            "AWSCDK-EKS-KubernetesResource", ClusterName=_NAME, Manifest={"Fn::Join": ["", _LATER]}
        ),
        "Neuron": custom(
            "AWSCDK-EKS-HelmChart",
            ClusterName=_NAME,
            Release="neuron",
            Chart="neuron-helm-chart",
            Version="1.3.0",
            Namespace="kube-system",
            Repository="oci://public.ecr.aws/neuron/neuron-helm-chart",
        ),
        "Unknown": custom("SomethingElse"),
        "Results": resource("S3::Bucket", BucketName="results-of-runs"),
        "Board": resource(
            "CloudWatch::Dashboard", DashboardName="speed", DashboardBody=json.dumps(DASHBOARD)
        ),
    },
}


def write_assembly(
    folder: Path,
    stacks: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]],
    *,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write name -> (template, what it depends on) as the CDK would; `more` are further artifacts."""
    artifacts: dict[str, Any] = dict(more or {})
    for name, (template, dependencies) in stacks.items():
        (folder / f"{name}.template.json").write_text(json.dumps(template, indent=1), encoding="utf-8")
        artifacts[name] = {
            "type": "aws:cloudformation:stack",
            "properties": {
                "templateFile": f"{name}.template.json",
                "requiresBootstrapStackVersion": 6,
                "bootstrapStackVersionSsmParameter": "/cdk-bootstrap/hnb659fds/version",
            },
            "dependencies": [*dependencies, f"{name}.assets"],
        }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}), encoding="utf-8")
    return folder


STACKS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "workloads": (WORKLOADS, ("cluster",)),
    "cluster": (CLUSTER, ("network",)),
    "network": (NETWORK, ()),
}
"""Listed in an order in which they could not be created."""
