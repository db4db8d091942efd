"""A cloud assembly written by hand: three small stacks, one of everything that the rehearsal treats differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REGION = "us-east-2"

MANIFEST = (
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "serving", "labels": {"on": "yes", "n": "0.10"}},
    },
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "neuron", "namespace": "serving"},
        "spec": {
            "spec": {"devices": {"requests": [{"name": "n", "exactly": {"count": 8, "adminAccess": False}}]}}
        },
    },
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "plan", "namespace": "serving"},
        "data": {"prompt": 'Say "hello" \\ twice:\n\tgrüße, 你好, 🙂', "empty": ""},
    },
)
"""Objects whose strings YAML, or a careless resolution of references, would change."""

HELM_VALUES = {"draDriver": {"enabled": True}, "devicePlugin": {"enabled": False}, "replicas": 2}
DASHBOARD = {"widgets": [{"type": "text", "width": 24, "height": 1, "properties": {"markdown": "# TPOT"}}]}


def role(service: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    document = {"Version": "2012-10-17", "Statement": [statement]}
    return {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": document}}


NETWORK: Mapping[str, Any] = {
    "Conditions": {"IsChina": {"Fn::Equals": [{"Ref": "AWS::Partition"}, "aws-cn"]}},
    "Resources": {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "Subnet": {
            "Type": "AWS::EC2::Subnet",
            "Properties": {
                "VpcId": {"Ref": "Vpc"},
                "CidrBlock": "10.0.0.0/24",
                "AvailabilityZone": "us-east-2a",
            },
        },
        "OnlyInChina": {"Type": "AWS::S3::Bucket", "Condition": "IsChina"},
    },
    "Outputs": {"Subnet": {"Value": {"Ref": "Subnet"}, "Export": {"Name": "network:Subnet"}}},
}

CLUSTER: Mapping[str, Any] = {
    "Resources": {
        "Role": role("eks.amazonaws.com"),
        "Cluster": {
            "Type": "AWS::EKS::Cluster",
            "Properties": {
                "Name": "trainium",
                "Version": "1.35",
                "RoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
                "ResourcesVpcConfig": {
                    "SubnetIds": [{"Fn::ImportValue": "network:Subnet"}],
                    "EndpointPublicAccess": True,
                    "EndpointPrivateAccess": True,
                    "PublicAccessCidrs": ["203.0.113.0/24"],
                },
                "Tags": [{"Key": "team", "Value": "llm"}],
            },
        },
        "Barrier": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "ready"}},
        "Together": {"Type": "AWS::EC2::PlacementGroup", "Properties": {"Strategy": "cluster"}},
        "Launch": {
            "Type": "AWS::EC2::LaunchTemplate",
            "Properties": {
                "LaunchTemplateData": {
                    "InstanceType": "trn2.48xlarge",
                    "Placement": {"GroupName": {"Ref": "Together"}},
                    "NetworkInterfaces": [
                        {
                            "DeviceIndex": min(card, 1),
                            "NetworkCardIndex": card,
                            "InterfaceType": "efa",
                            "Groups": [{"Fn::GetAtt": ["Cluster", "ClusterSecurityGroupId"]}],
                        }
                        for card in range(16)
                    ],
                }
            },
        },
        "Nodes": {
            "Type": "AWS::EKS::Nodegroup",
            "Properties": {
                "NodegroupName": "trn2",
                "ClusterName": {"Ref": "Cluster"},
                "NodeRole": {"Fn::GetAtt": ["Role", "Arn"]},
                "AmiType": "AL2023_x86_64_NEURON",
                "Subnets": [{"Fn::ImportValue": "network:Subnet"}],
                "ScalingConfig": {"MinSize": 0, "DesiredSize": 0, "MaxSize": 1},
                "Labels": {"example.com/Accelerator": "trn2"},
                "Taints": [{"Key": "aws.amazon.com/neuron", "Value": "true", "Effect": "NO_SCHEDULE"}],
                "LaunchTemplate": {
                    "Id": {"Ref": "Launch"},
                    "Version": {"Fn::GetAtt": ["Launch", "LatestVersionNumber"]},
                },
            },
        },
        "Dns": {
            "Type": "AWS::EKS::Addon",
            "Properties": {"AddonName": "coredns", "ClusterName": {"Ref": "Cluster"}},
        },
    },
    "Outputs": {"Name": {"Value": {"Ref": "Cluster"}, "Export": {"Name": "cluster:Name"}}},
}

WORKLOADS: Mapping[str, Any] = {
    "Parameters": {
        "BootstrapVersion": {
            "Type": "AWS::SSM::Parameter::Value<String>",
            "Default": "/cdk-bootstrap/hnb659fds/version",
        }
    },
    "Resources": {
        "Role": role("lambda.amazonaws.com"),
        "Kubectl": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Code": {
                    "S3Bucket": {"Fn::Sub": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"},
                    "S3Key": "0123.zip",
                },
                "Handler": "index.handler",
                "Runtime": "python3.13",
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
            },
        },
        "Applied": {
            "Type": "Custom::AWSCDK-EKS-KubernetesResource",
            "Properties": {
                "ServiceToken": {"Fn::GetAtt": ["Kubectl", "Arn"]},
                "ClusterName": {"Fn::ImportValue": "cluster:Name"},
                "Manifest": json.dumps(MANIFEST),
            },
        },
        "AppliedLater": {
            "Type": "Custom::AWSCDK-EKS-KubernetesResource",
            "Properties": {
                "ServiceToken": {"Fn::GetAtt": ["Kubectl", "Arn"]},
                "ClusterName": {"Fn::ImportValue": "cluster:Name"},
                "PruneLabel": "aws.cdk.eks/prune-c8",
                "Manifest": {
                    "Fn::Join": [
                        "",
                        ['[{"kind":"ConfigMap","data":{"on":"', {"Fn::ImportValue": "cluster:Name"}, '"}}]'],
                    ]
                },
            },
        },
        "Neuron": {
            "Type": "Custom::AWSCDK-EKS-HelmChart",
            "Properties": {
                "ServiceToken": {"Fn::GetAtt": ["Kubectl", "Arn"]},
                "ClusterName": {"Fn::ImportValue": "cluster:Name"},
                "Release": "neuron",
                "Chart": "neuron-helm-chart",
                "Version": "1.3.0",
                "Namespace": "kube-system",
                "Repository": "oci://public.ecr.aws/neuron/neuron-helm-chart",
                "Values": json.dumps(HELM_VALUES),
            },
        },
        "Unknown": {
            "Type": "Custom::SomethingElse",
            "Properties": {"ServiceToken": {"Fn::GetAtt": ["Kubectl", "Arn"]}},
        },
        "Results": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "results-of-runs"}},
        "Board": {
            "Type": "AWS::CloudWatch::Dashboard",
            "Properties": {"DashboardName": "speed", "DashboardBody": json.dumps(DASHBOARD)},
        },
    },
}


def write_assembly(
    folder: Path,
    stacks: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]],
    *,
    environment: str = "aws://unknown-account/unknown-region",
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write name -> (template, what it depends on) as the CDK would; `more` are further artifacts."""
    artifacts: dict[str, Any] = dict(more or {})
    for name, (template, dependencies) in stacks.items():
        (folder / f"{name}.template.json").write_text(json.dumps(template, indent=1), encoding="utf-8")
        artifacts[name] = {
            "type": "aws:cloudformation:stack",
            "environment": environment,
            "properties": {
                "templateFile": f"{name}.template.json",
                "requiresBootstrapStackVersion": 6,
                "bootstrapStackVersionSsmParameter": "/cdk-bootstrap/hnb659fds/version",
            },
            "dependencies": [*dependencies, f"{name}.assets"],
        }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}), encoding="utf-8")
    return folder


def write_three_stacks(folder: Path) -> Path:
    """The stacks above, listed in an order in which they could not be created."""
    return write_assembly(
        folder,
        {
            "workloads": (WORKLOADS, ("cluster",)),
            "cluster": (CLUSTER, ("network",)),
            "network": (NETWORK, ()),
        },
    )
