"""Resources outside the stacks that may outlive the cluster: load balancers and volumes of users, network interfaces of the network
plugin, and the security group of EKS. Not run on AWS."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from trnspec.core.words import listed
from trnspec.experiment import Experiment
from trnspec.experiment.naming import cluster_name
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.cloudformation import TAG, teardown_command
from trnspec.operations.cloud.kubernetes import Kubernetes

Remaining = tuple[str, str]
"""The resource that remains, and why, with the command that removes it."""
PLUGIN_TAG = "cluster.k8s.amazonaws.com/name"
"""The network plugin sets it on every interface that it makes (https://github.com/aws/amazon-vpc-cni-k8s)."""
EKS_TAG = "aws:eks:cluster-name"
"""EKS sets it on the group `eks-cluster-sg-NAME-...` (https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html)."""

_INTERFACES = "describe_network_interfaces", "NetworkInterfaces"
_GROUPS = "describe_security_groups", "SecurityGroups"


def balanced(cluster: Kubernetes) -> list[tuple[str, str]]:
    """Return kind and `namespace/name` of what has a load balancer: its controller deletes that with the object, as long as the
    cluster lives."""
    services = cluster.list("services", everywhere=True)
    found = [("service", one) for one in services if one.get("spec", {}).get("type") == "LoadBalancer"]
    found += [("ingress", one) for one in cluster.list("ingresses", everywhere=True)]
    return [(kind, f"{one['metadata']['namespace']}/{one['metadata']['name']}") for kind, one in found]


def volumes(cluster: Kubernetes) -> dict[str, str]:
    """Return the EBS volumes of the cluster's claims by id, each with its claim."""
    found = {}
    for item in cluster.list("persistentvolumes"):
        spec = item.get("spec", {})
        claim = spec.get("claimRef", {})
        if spec.get("csi", {}).get("driver") == "ebs.csi.aws.com":
            found[spec["csi"]["volumeHandle"]] = f"{claim.get('namespace')}/{claim.get('name')}"
    return found


def billed(arns: Iterable[str], region: str) -> list[Remaining]:
    """Return the load balancers and volumes among these ARNs, with what deletes them."""
    found = []
    for arn in arns:
        service, resource = arn.split(":", 5)[2::3]
        kind, _, name = resource.partition("/")
        command = {
            "elasticloadbalancing:loadbalancer": f"elbv2 delete-load-balancer --load-balancer-arn {arn}"
            if "/" in name
            else f"elb delete-load-balancer --load-balancer-name {name}",  # of the first kind
            "ec2:volume": f"ec2 delete-volume --volume-id {name}",
        }.get(f"{service}:{kind}")
        if command:
            why = f"was created in the cluster and is billed; copy what you need, then aws {command} --region {region}"
            found.append((resource, why))
    return found


def standing(volumes: Iterable[str], aws: Aws) -> list[str]:
    """Return the ARNs of those of the volumes that exist."""
    asked = [{"Name": "volume-id", "Values": [*volumes]}]
    found = aws.client("ec2").paginate("describe_volumes", "Volumes", Filters=asked) if volumes else ()
    return [f"arn:aws:ec2:{aws.region}:{aws.account}:volume/{one['VolumeId']}" for one in found]


def free_network(experiment: Experiment, aws: Aws) -> list[Remaining]:
    """Delete the interfaces of the network plugin and the group of EKS that outlived the cluster, and return those that stay: they
    keep subnets and VPC (https://github.com/aws/amazon-vpc-cni-k8s/issues/608, https://github.com/aws/aws-k8s-tester/pull/416)."""
    ec2, name, left = aws.client("ec2"), cluster_name(experiment), list[Remaining]()
    wanted: list[tuple[str, Callable[[], Any]]] = [
        (_shown(one), partial(ec2.delete_network_interface, NetworkInterfaceId=one["NetworkInterfaceId"]))
        for one in ec2.paginate(*_INTERFACES, Filters=_tagged(PLUGIN_TAG, name))
    ]
    groups = ec2.paginate(*_GROUPS, Filters=_tagged(EKS_TAG, name))
    wanted += [(_shown(one), partial(ec2.delete_security_group, GroupId=one["GroupId"])) for one in groups]
    for what, delete in wanted:
        try:
            delete()
            print(f"    {what}: deleted", file=sys.stderr)
        except AwsError as error:
            if not error.code.endswith(".NotFound"):
                again = f"then run {teardown_command(experiment)} again"
                left.append((what, f"{error}; delete what uses it, {again}"))
    return left


def in_vpc(experiment: Experiment, aws: Aws) -> str:
    """Return what is in the network of the experiment and may keep it; empty without a network."""
    ec2 = aws.client("ec2")
    own = ec2.paginate("describe_vpcs", "Vpcs", Filters=_tagged(TAG, experiment.name))
    vpcs = [one["VpcId"] for one in own]
    within = [{"Name": "vpc-id", "Values": vpcs}]
    found = [one for asked in (_INTERFACES, _GROUPS) if vpcs for one in ec2.paginate(*asked, Filters=within)]
    names = [_shown(one) for one in found if one.get("GroupName") != "default"]
    return f" ({', '.join(vpcs)} has {listed(names, max_names=8)})" if names else ""


def _tagged(key: str, value: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{key}", "Values": [value]}]


def _shown(resource: Mapping[str, Any]) -> str:
    if "NetworkInterfaceId" not in resource:
        return f"security group {resource['GroupId']} ({resource['GroupName']})"
    about = resource.get("Description") or resource["InterfaceType"]
    return f"network interface {resource['NetworkInterfaceId']} ({about}, {resource['Status']})"
