"""Checks that an existing VPC has what nodes, pods and the control plane need. It is only read, never changed.

What EKS asks of a VPC and its subnets: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from trnspec.core.findings import Finding, Refusal, finding, fine
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from trnspec.experiment.cost import SYSTEM_NODES
from trnspec.experiment.naming import stack_name
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws, CheckedClient

CONTROL_PLANE_ADDRESSES = 16
"""Free addresses that EKS recommends for its interfaces in a subnet; functions and the bastion use a few of them."""
INTERFACES_OF_A_NODE = 2
"""With addresses for pods: the one in use and the one that the network plugin keeps ready, full of addresses
(`WARM_ENI_TARGET`, https://docs.aws.amazon.com/eks/latest/best-practices/vpc-cni.html). EFA takes an address on the first
network card alone."""
_EVERYWHERE = "0.0.0.0/0"
_DNS = {"EnableDnsSupport": "--enable-dns-support", "EnableDnsHostnames": "--enable-dns-hostnames"}
_GONE = "InvalidVpcID.NotFound", "InvalidVpcID.Malformed"
_Described = dict[str, Any]
"""A resource as EC2 describes it."""


class ExistingVpc:
    """The checks of the VPC that an experiment names. EC2 is asked once for subnets and routes."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._experiment, self._aws = experiment, aws
        self._ids = experiment.cluster.network.private_subnets
        self._vpc = experiment.cluster.network.vpc or ""

    @property
    def _ec2(self) -> CheckedClient:
        return self._aws.client("ec2")

    def checks(self) -> dict[str, Callable[[], Finding]]:
        """Return all checks by name; empty if a deployment creates the network."""
        found: dict[str, Callable[[], Finding]] = {"vpc": self.vpc} if self._vpc else {}
        for zone in self._ids if self._vpc else ():
            found[f"subnet {zone}"] = partial(self.subnet, zone)
            found[f"addresses {zone}"] = partial(self.addresses, zone)
            found[f"egress {zone}"] = partial(self.egress, zone)
        return found

    def vpc(self) -> Finding:
        """Check that the VPC exists, has both DNS options, and that the cluster is in no network of its own."""
        vpc, aws, own = self._vpc, self._aws, stack_name(self._experiment, "network")
        if self._ec2.find("describe_vpcs", *_GONE, VpcIds=[vpc]) is None:
            why = f"{vpc}: no such VPC in account {aws.account}, {aws.region}"
            return finding(why, "check cluster.network.vpc, cluster.region and AWS_PROFILE")
        if cloudformation.stack_named(own, aws).made:
            why = f"{own} is deployed, and a cluster does not move from its network to {vpc}"
            return finding(why, f"run ./trnspec teardown {self._experiment.file} first; buckets stay")
        for name, option in _DNS.items():
            value = self._ec2.describe_vpc_attribute(VpcId=vpc, Attribute=name[0].lower() + name[1:])
            if not value[name]["Value"]:
                remedy = f"aws ec2 modify-vpc-attribute --vpc-id {vpc} {option} --region {aws.region}"
                return finding(f"{vpc} has {name} off, and nodes cannot register without", remedy)
        return fine(f"{vpc} has DNS resolution and DNS host names enabled")

    def subnet(self, zone: str) -> Finding:
        """Check that the subnet is in this VPC and zone."""
        subnet, name = self._subnet(zone), self._ids[zone]
        there, key = subnet["AvailabilityZone"], f"cluster.network.private_subnets.{zone}"
        if subnet["VpcId"] != self._vpc:
            return finding(f"{name} is in {subnet['VpcId']}, not in {self._vpc}", f"change {key}")
        if there != zone:
            return finding(f"{name} is in {there}, not in {zone}", f"name a subnet of {zone} in {key}")
        return fine(f"{name}, {subnet['CidrBlock']}")

    def addresses(self, zone: str) -> Finding:
        """Check the free addresses before the first deployment; EC2 says how many an interface of a node uses."""
        if cloudformation.stack_named(stack_name(self._experiment, "cluster"), self._aws).made:
            return fine("the cluster is there already")
        cluster, free = self._experiment.cluster, int(self._subnet(zone)["AvailableIpAddressCount"])
        spread = -(-(SYSTEM_NODES + 1) // len(self._ids))
        parts = {
            "for the control plane": CONTROL_PLANE_ADDRESSES,
            "for system nodes": spread * self._of_a_node(SYSTEM_INSTANCE_TYPE),
        }
        if zone == cluster.trn2_zone:
            parts["for Trn2 nodes"] = cluster.max_nodes * self._of_a_node(cluster.instance)
        need, by = sum(parts.values()), ", ".join(f"{number} {what}" for what, number in parts.items())
        why = f"{self._ids[zone]} has {free} free addresses; needed: {need} ({by})"
        remedy = f"name a larger subnet of {zone}, or free addresses in this one"
        return fine(why) if free >= need else finding(why, remedy)

    def _of_a_node(self, instance: str) -> int:
        (kind,) = self._ec2.describe_instance_types(InstanceTypes=[instance])["InstanceTypes"]
        return INTERFACES_OF_A_NODE * int(kind["NetworkInfo"]["Ipv4AddressesPerInterface"])

    def egress(self, zone: str) -> Finding:
        """Check for a route to the internet that works without a public address: charts, images and weights come from there."""
        self._subnet(zone)
        table = self._table(zone)
        routes = (one for one in table.get("Routes", ()) if one.get("DestinationCidrBlock") == _EVERYWHERE)
        name, route = table.get("RouteTableId", "no route table"), next(routes, None)
        to_nat = f"--route-table-id {name} --destination-cidr-block {_EVERYWHERE} --nat-gateway-id nat-..."
        if route is None:
            why = f"{name} has no route to {_EVERYWHERE}; charts, images and weights come from public.ecr.aws and Hugging Face"
            return finding(why, f"aws ec2 create-route {to_nat}")
        targets = (str(route[key]) for key in route if key.endswith("Id") and "-" in str(route[key]))
        target = next(targets, "something without an id")  # a NAT or transit gateway, an interface ...
        way = f"{name} sends {_EVERYWHERE} to {target}"
        if route.get("State") == "blackhole":
            return finding(f"{way}, which is gone", f"aws ec2 replace-route {to_nat}")
        if target.startswith("igw-"):
            why = f"{way}, which serves public addresses only, and nodes have none"
            return finding(why, f"name a private subnet of {zone}, whose route leads to a NAT gateway")
        return fine(way)

    @cached_property
    def _subnets(self) -> dict[str, _Described]:
        """Return the existing subnets by zone, of any VPC."""
        wanted = [{"Name": "subnet-id", "Values": list(self._ids.values())}]
        found = self._ec2.paginate("describe_subnets", "Subnets", Filters=wanted)
        zones = {name: zone for zone, name in self._ids.items()}
        return {zones[subnet["SubnetId"]]: subnet for subnet in found}

    def _subnet(self, zone: str) -> _Described:
        if zone in self._subnets:
            return self._subnets[zone]
        why = f"{self._ids[zone]}: no such subnet in account {self._aws.account}, {self._aws.region}"
        keys = f"cluster.network.private_subnets.{zone}, cluster.region"
        raise Refusal(finding(why, f"check {keys} and AWS_PROFILE"))

    @cached_property
    def _tables(self) -> list[_Described]:
        wanted = [{"Name": "vpc-id", "Values": [self._vpc]}]
        return [*self._ec2.paginate("describe_route_tables", "RouteTables", Filters=wanted)]

    def _table(self, zone: str) -> _Described:
        """Return the subnet's own route table, else the main one."""
        joined = [(link, table) for table in self._tables for link in table.get("Associations", ())]
        own = (table for one, table in joined if one.get("SubnetId") == self._ids[zone])
        return next(own, next((table for one, table in joined if one.get("Main")), {}))
