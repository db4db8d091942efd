"""Decisions that are one property of a template: a row each, so that no change of one passes unseen."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.infra.templates import Deployment, Deployments, resolved

TABLE = """
reference | cluster | AWS::EKS::Cluster | ResourcesVpcConfig.EndpointPublicAccess | false
opened | cluster | AWS::EKS::Cluster | ResourcesVpcConfig.EndpointPublicAccess | true
opened | cluster | AWS::EKS::Cluster | ResourcesVpcConfig.PublicAccessCidrs | [203.0.113.7/32]
opened | cluster | AWS::EKS::Cluster | Version | "1.36"
reference | cluster | AWS::EKS::Cluster | UpgradePolicy | {SupportType: STANDARD}
reference | cluster | AWS::EKS::Cluster | AccessConfig | {AuthenticationMode: API, BootstrapClusterCreatorAdminPermissions: false}
reference | cluster | AWS::EKS::Cluster | BootstrapSelfManagedAddons | false
reference | cluster | AWS::EKS::Cluster | Logging.ClusterLogging.EnabledTypes | [{Type: api}, {Type: audit}, {Type: authenticator}, {Type: controllerManager}, {Type: scheduler}]
reference | cluster | AWS::KMS::Key | EnableKeyRotation | true
reference | storage | AWS::KMS::Key | EnableKeyRotation | true
reference | * | AWS::EKS::Addon {AddonName: vpc-cni} | ConfigurationValues | {enableNetworkPolicy: "true"}
reference | * | AWS::EKS::Addon {AddonName: aws-mountpoint-s3-csi-driver} | ConfigurationValues | {node: {tolerateAllTaints: true}}
reference | * | AWS::EKS::Addon {AddonName: amazon-cloudwatch-observability} | PodIdentityAssociations.0.ServiceAccount | cloudwatch-agent
reference | * | AWS::EKS::Addon {AddonName: amazon-cloudwatch-observability} | ConfigurationValues.agent.config.logs.metrics_collected | {kubernetes: {enhanced_container_insights: true, accelerated_compute_metrics: true}}
reference | cluster | AWS::EKS::Nodegroup | InstanceTypes | [m7i.xlarge]
reference | cluster | AWS::EKS::Nodegroup | ScalingConfig | {MinSize: 2, DesiredSize: 2, MaxSize: 3}
reference | cluster | AWS::EKS::Nodegroup | Labels | {speculation.trn2/role: system}
reference | cluster | AWS::EKS::Nodegroup | Taints | null
reference | cluster | AWS::EKS::Nodegroup | ReleaseVersion | 1.35.6-20260714
opened | cluster | AWS::EKS::Nodegroup | ReleaseVersion | 1.36.2-20260714
reference | cluster | AWS::AutoScaling::AutoScalingGroup | DesiredCapacity | "1"
reference | cluster | AWS::AutoScaling::AutoScalingGroup | MaxSize | "1"
opened | * | AWS::AutoScaling::AutoScalingGroup | # | 0
reference | nodes | AWS::EKS::Nodegroup | ScalingConfig | {MinSize: 0, DesiredSize: 0, MaxSize: 1}
opened | nodes | AWS::EKS::Nodegroup | ScalingConfig | {MinSize: 0, DesiredSize: 1, MaxSize: 2}
reference | nodes | AWS::EKS::Nodegroup | NodegroupName | qwen3-32b-trn2-a-on-demand-d2-28
rented | nodes | AWS::EKS::Nodegroup | NodegroupName | rented-trn2-b-capacity-block-9abcdef0-d2-28
reference | nodes | AWS::EKS::Nodegroup | AmiType | AL2023_x86_64_NEURON
reference | nodes | AWS::EKS::Nodegroup | ReleaseVersion | 1.35.6-20260625
later | * | AWS::EKS::Nodegroup | Version | "1.36"
reference | nodes | AWS::EKS::Nodegroup | NodeRepairConfig | {Enabled: true}
reference | nodes | AWS::EKS::Nodegroup | UpdateConfig | {MaxUnavailable: 1, UpdateStrategy: MINIMAL}
reference | nodes | AWS::EKS::Nodegroup | Labels | {speculation.trn2/role: neuron, speculation.trn2/devices: dra}
reference | nodes | AWS::EKS::Nodegroup | Taints | [{Key: aws.amazon.com/neuron, Value: "true", Effect: NO_SCHEDULE}]
reference | nodes | AWS::EKS::Nodegroup | CapacityType | ON_DEMAND
rented | nodes | AWS::EKS::Nodegroup | CapacityType | CAPACITY_BLOCK
reference | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.SecurityGroupIds | null
reference | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.InstanceType | trn2.48xlarge
reference | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.InstanceMarketOptions | null
rented | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.InstanceMarketOptions | {MarketType: capacity-block}
reference | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.CapacityReservationSpecification | null
rented | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget | {CapacityReservationId: cr-0123456789abcdef0}
later | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget | {CapacityReservationId: cr-0123456789abcdef0}
reference | nodes | AWS::EC2::LaunchTemplate | LaunchTemplateData.Placement | null
reference | * | AWS::EC2::LaunchTemplate | LaunchTemplateData.MetadataOptions.HttpTokens | required
reference | * | AWS::EC2::LaunchTemplate | LaunchTemplateData.MetadataOptions.HttpPutResponseHopLimit | 1
reference | * | AWS::EC2::LaunchTemplate | LaunchTemplateData.BlockDeviceMappings.0.Ebs.Encrypted | true
reference | * | AWS::EC2::LaunchTemplate | LaunchTemplateData.BlockDeviceMappings.0.Ebs.VolumeType | gp3
reference | * | AWS::Scheduler::Schedule | ScheduleExpressionTimezone | UTC
reference | * | AWS::Scheduler::Schedule | FlexibleTimeWindow | {Mode: "OFF"}
rented | * | AWS::SQS::Queue | MessageRetentionPeriod | 1209600
reference | network | AWS::EC2::NatGateway | # | 1
opened | network | AWS::EC2::NatGateway | # | 2
reference | network | AWS::EC2::Subnet | MapPublicIpOnLaunch | false
reference | network | AWS::EC2::FlowLog | TrafficType | ALL
reference | network | AWS::Lambda::Function | # | 0
opened | network | AWS::EC2::VPCEndpoint {VpcEndpointType: Interface} | PrivateDnsEnabled | true
reference | * | AWS::S3::Bucket | PublicAccessBlockConfiguration | {BlockPublicAcls: true, BlockPublicPolicy: true, IgnorePublicAcls: true, RestrictPublicBuckets: true}
reference | * | AWS::S3::Bucket | OwnershipControls | {Rules: [{ObjectOwnership: BucketOwnerEnforced}]}
reference | network | AWS::EC2::VPCEndpoint | VpcEndpointType | Gateway
reference | network | AWS::EC2::VPCEndpoint | ServiceName | com.amazonaws.us-east-2.s3
small | network | AWS::EC2::Subnet | # | 6
small | network | AWS::EC2::Subnet {AvailabilityZone: ap-southeast-4a} | # | 2
reference | storage | AWS::S3::Bucket {VersioningConfiguration: {Status: Enabled}} | # | 3
reference | storage | AWS::S3::Bucket | @UpdateReplacePolicy | Retain
reference | storage | AWS::S3::Bucket | @DeletionPolicy | RetainExceptOnCreate
reference | storage | AWS::KMS::Key | @DeletionPolicy | RetainExceptOnCreate
reference | storage | AWS::S3::Bucket {VersioningConfiguration: {Status: Enabled}} | BucketEncryption.ServerSideEncryptionConfiguration.0.BucketKeyEnabled | true
reference | identity | AWS::IAM::Role | AssumeRolePolicyDocument.Statement.0.Principal | {Service: pods.eks.amazonaws.com}
reference | identity | AWS::IAM::Role | AssumeRolePolicyDocument.Statement.0.Action | [sts:AssumeRole, sts:TagSession]
reference | workloads | Custom::AWSCDK-EKS-KubernetesResource | Overwrite | true
reference | workloads | Custom::AWSCDK-EKS-KubernetesResource | PruneLabel | null
reference | workloads | Custom::AWSCDK-EKS-HelmChart {Release: neuron} | Values | {devicePlugin: {enabled: false}, scheduler: {enabled: false}, draDriver: {enabled: true, nodeSelector: {speculation.trn2/devices: dra}}, npd: {enabled: false}}
rented | workloads | Custom::AWSCDK-EKS-HelmChart {Release: neuron} | Values | {devicePlugin: {enabled: true, nodeSelector: {speculation.trn2/devices: device-plugin}}, scheduler: {enabled: true, nodeSelector: {speculation.trn2/role: system}, customScheduler: {image: {tag: v1.35.8-eks-1-35-15}, nodeSelector: {speculation.trn2/role: system}}}, draDriver: {enabled: false}, npd: {enabled: false}}
rented | workloads | Custom::AWSCDK-EKS-HelmChart {Release: keda} | Namespace | keda
rented | workloads | Custom::AWSCDK-EKS-HelmChart {Release: keda} | Values.watchNamespace | rented
rented | workloads | Custom::AWSCDK-EKS-HelmChart {Release: keda} | Values.permissions.operator.restrict.secret | true
rented | workloads | Custom::AWSCDK-EKS-HelmChart {Release: keda} | Values.operator.nodeSelector | {speculation.trn2/role: system}
opened | workloads | AWS::ECR::Repository | ImageTagMutability | IMMUTABLE
opened | workloads | AWS::ECR::Repository | EmptyOnDelete | true
opened | workloads | AWS::ECR::Repository | ImageScanningConfiguration | {ScanOnPush: true}
reference | * | AWS::SNS::Subscription | # | 0
opened | * | AWS::SNS::Subscription | Endpoint | team@example.com
"""
"""Deployment | stack, or * | type {and properties that select} | path | value of each such resource, in YAML. `#` counts
them, `@` is beside the properties; JSON within a property is read on the way."""


@pytest.mark.parametrize("row", TABLE.strip().splitlines())
def test_a_property_is_as_it_was_decided(row: str, made: Deployments) -> None:
    which, stack, selected, path, value = (cell.strip() for cell in row.split(" | "))
    deployment: Deployment = getattr(made, which)
    type_, _, chosen = selected.partition(" ")
    wanted, properties = yaml.safe_load(value), yaml.safe_load(chosen) if chosen else {}
    resources = deployment.resources(type_, None if stack == "*" else stack, **properties)
    if path == "#":
        assert len(resources) == wanted
    else:
        bodies = [one.body if path.startswith("@") else one.properties for one in resources]
        found = [_at(resolved(body), path.removeprefix("@").split(".")) for body in bodies]
        assert found == [wanted] * len(resources) != []


def _at(value: Any, path: list[str]) -> Any:
    for step in path:
        value = json.loads(value) if isinstance(value, str) else value
        if value is None:
            return None
        value = value[int(step)] if isinstance(value, list) else value.get(step)
    return json.loads(value) if isinstance(value, str) and re.match(r"[{\[]", value) else value
