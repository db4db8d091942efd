"""A cloud assembly written by hand: two small stacks, one of everything that the rehearsal treats differently."""

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

Resource = dict[str, Any]
Template = Mapping[str, Any]


def resource(kind: str, **properties: Any) -> Resource:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def custom(kind: str, **properties: Any) -> Resource:
    token = {"ServiceToken": {"Fn::GetAtt": ["Kubectl", "Arn"]}}
    return {"Type": f"Custom::{kind}", "Properties": token | properties}


def role(service: str, **properties: Any) -> Resource:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    return resource("IAM::Role", AssumeRolePolicyDocument=policy, **properties)


NETWORK: Template = {
    "Conditions": {"IsChina": {"Fn::Equals": [{"Ref": "AWS::Partition"}, "aws-cn"]}},
    "Resources": {
        "Vpc": resource("EC2::VPC", CidrBlock="10.0.0.0/16"),
        "Subnet": resource(
            "EC2::Subnet", VpcId={"Ref": "Vpc"}, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-2a"
        ),
        "OnlyInChina": {"Type": "AWS::S3::Bucket", "Condition": "IsChina"},
    },
    "Outputs": {"Subnet": {"Value": {"Ref": "Subnet"}, "Export": {"Name": "network:Subnet"}}},
}
CLUSTER: Resource = resource(
    "EKS::Cluster",
    Name="trainium",
    Version="1.35",
    RoleArn={"Fn::GetAtt": ["Role", "Arn"]},
    ResourcesVpcConfig={"SubnetIds": [{"Ref": "Subnet"}], "EndpointPublicAccess": True},
    Tags=[{"Key": "team", "Value": "llm"}],
)
_BUCKET = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"
_IMAGE = {"repositoryName": "container-assets", "imageTag": "c0ffee"}
ASSETS = {
    "files": {"f": {"destinations": {"here": {"bucketName": _BUCKET, "objectKey": "0123.zip"}}}},
    "dockerImages": {"i": {"destinations": {"here": _IMAGE}}},
}
_LATER = ['[{"kind":"ConfigMap","data":{"on":"', {"Fn::ImportValue": "network:Subnet"}, '"}}]']
WORKLOADS: Template = {
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
            Code={"S3Bucket": {"Fn::Sub": _BUCKET}, "S3Key": "0123.zip"},
            Handler="index.handler",
            Runtime="python3.13",
            Role={"Fn::GetAtt": ["Role", "Arn"]},
        ),
        "Applied": custom("AWSCDK-EKS-KubernetesResource", Manifest=json.dumps(MANIFEST)),
        "AppliedLater": custom("AWSCDK-EKS-KubernetesResource", Manifest={"Fn::Join": ["", _LATER]}),
        "Neuron": custom("AWSCDK-EKS-HelmChart", Chart="neuron-helm-chart"),
        "Unknown": custom("SomethingElse"),
        "Together": resource("EC2::PlacementGroup", Strategy="cluster"),
        "Barrier": resource("SSM::Parameter", Type="String", Value={"Ref": "Together"}),
    },
}


def write_assembly(folder: Path, stacks: Mapping[str, tuple[Template, tuple[str, ...]]]) -> Path:
    """Write name -> (template, what it depends on) as the CDK would, with `ASSETS`."""
    (folder / "assets.json").write_text(json.dumps(ASSETS), encoding="utf-8")
    artifacts: dict[str, Any] = {
        "some.assets": {"type": "cdk:asset-manifest", "properties": {"file": "assets.json"}}
    }
    for name, (template, dependencies) in stacks.items():
        (folder / f"{name}.template.json").write_text(json.dumps(template, indent=1), encoding="utf-8")
        artifacts[name] = {
            "type": "aws:cloudformation:stack",
            "properties": {"templateFile": f"{name}.template.json"},
            "dependencies": [*dependencies, "some.assets"],
        }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}), encoding="utf-8")
    return folder


STACKS: Mapping[str, tuple[Template, tuple[str, ...]]] = {
    "workloads": (WORKLOADS, ("network",)),
    "network": (NETWORK, ()),
}
"""Listed in an order in which they could not be created."""
