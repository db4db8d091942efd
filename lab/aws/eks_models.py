"""CloudFormation models of an EKS cluster and its node groups, over the `eks` and `ec2` backends that moto has.

Properties go in as the templates write them and come out of the EKS API as EKS would show them. Where moto would
fill in a default that EKS does not have (instance types beside a launch template, an AMI release of 2021), the field
stays empty.
"""

from __future__ import annotations

from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.core.common_models import CloudFormationModel
from moto.ec2.models import ec2_backends
from moto.eks.models import Cluster, Nodegroup, eks_backends


class EksCluster(CloudFormationModel):
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-cluster.html"""

    def __init__(self, cluster: Cluster, security_group_id: str) -> None:
        self.physical_resource_id = cluster.name
        self._attributes = {
            "Arn": cluster.arn,
            "CertificateAuthorityData": cluster.certificate_authority["data"],
            "ClusterSecurityGroupId": security_group_id,
            "EncryptionConfigKeyArn": next(
                (one["provider"]["keyArn"] for one in cluster.encryption_config), ""
            ),
            "Endpoint": cluster.endpoint,
            "Id": cluster.name,
            "OpenIdConnectIssuerUrl": cluster.identity["oidc"]["issuer"],
        }

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EKS::Cluster"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> EksCluster:
        properties = cloudformation_json["Properties"]
        network = _camel(properties["ResourcesVpcConfig"])
        ec2 = ec2_backends[account_id][region_name]
        network["vpcId"] = ec2.get_subnet(network["subnetIds"][0]).vpc_id
        group = ec2.create_security_group(
            f"eks-cluster-sg-{resource_name}", "EKS created security group", vpc_id=network["vpcId"]
        )
        network["clusterSecurityGroupId"] = group.id
        types = _log_types(properties)
        cluster = eks_backends[account_id][region_name].create_cluster(
            name=resource_name,
            role_arn=properties["RoleArn"],
            resources_vpc_config=network,
            version=properties.get("Version"),
            kubernetes_network_config=_camel(properties.get("KubernetesNetworkConfig")),
            logging={"clusterLogging": [{"types": types, "enabled": True}]} if types else None,
            tags={tag["Key"]: tag["Value"] for tag in properties.get("Tags", ())},
            encryption_config=_camel(properties.get("EncryptionConfig")),
        )
        return cls(cluster, group.id)

    def get_cfn_attribute(self, attribute: str) -> str:
        if attribute not in self._attributes:
            raise ValidationError(message=f"AWS::EKS::Cluster has no attribute {attribute} in the rehearsal")
        return self._attributes[attribute]


class EksNodegroup(CloudFormationModel):
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html"""

    def __init__(self, group: Nodegroup) -> None:
        self.physical_resource_id = f"{group.cluster_name}/{group.nodegroup_name}"
        self._attributes = {
            "Arn": group.arn,
            "ClusterName": group.cluster_name,
            "Id": self.physical_resource_id,
            "NodegroupName": group.nodegroup_name,
        }

    @staticmethod
    def cloudformation_name_type() -> str:
        return "NodegroupName"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EKS::Nodegroup"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> EksNodegroup:
        properties = cloudformation_json["Properties"]
        eks = eks_backends[account_id][region_name]
        group = eks.create_nodegroup(
            cluster_name=properties["ClusterName"],
            node_role=properties["NodeRole"],
            nodegroup_name=resource_name,
            subnets=properties["Subnets"],
            scaling_config=_camel(properties.get("ScalingConfig")),
            disk_size=properties.get("DiskSize"),
            instance_types=properties.get("InstanceTypes"),
            ami_type=properties.get("AmiType"),
            remote_access=_camel(properties.get("RemoteAccess")),
            labels=properties.get("Labels"),
            taints=_camel(properties.get("Taints")),
            tags=properties.get("Tags"),
            launch_template=_camel(properties.get("LaunchTemplate")),
            capacity_type=properties.get("CapacityType"),
            version=properties.get("Version") or eks.describe_cluster(properties["ClusterName"]).version,
            release_version=properties.get("ReleaseVersion"),
        )
        group.update_config = _camel(properties.get("UpdateConfig"))
        group.node_repair_config = _camel(properties.get("NodeRepairConfig"))
        _leave_open(group, properties)
        return cls(group)

    def get_cfn_attribute(self, attribute: str) -> str:
        if attribute not in self._attributes:
            raise ValidationError(message=f"AWS::EKS::Nodegroup has no attribute {attribute}")
        return self._attributes[attribute]


def _camel(value: Any) -> Any:
    """CloudFormation writes `SubnetIds` where the EKS API has `subnetIds`; not for maps whose keys are the user's."""
    if isinstance(value, dict):
        return {key[:1].lower() + key[1:]: _camel(one) for key, one in value.items()}
    return [_camel(one) for one in value] if isinstance(value, list) else value


def _log_types(properties: dict[str, Any]) -> list[str]:
    logging = properties.get("Logging", {}).get("ClusterLogging", {})
    return [one["Type"] for one in logging.get("EnabledTypes", ())]


def _leave_open(group: Nodegroup, properties: dict[str, Any]) -> None:
    """Take back moto's defaults where EKS has none."""
    invented = {"release_version": "ReleaseVersion", "remote_access": "RemoteAccess"}
    if "LaunchTemplate" in properties:
        invented |= {"instance_types": "InstanceTypes", "disk_size": "DiskSize"}
    for attribute, name in invented.items():
        if name not in properties:
            setattr(group, attribute, None)
