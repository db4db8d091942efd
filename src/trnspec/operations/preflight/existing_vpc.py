"""Checks that an existing VPC has what nodes, pods and the control plane need. It is only read, never changed.

What EKS asks of a VPC and its subnets: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from ipaddress import IPv4Network
from typing import Any

from trnspec.core.findings import Finding, Refusal, finding, fine
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.models import table_of
from trnspec.experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from trnspec.experiment.cost import SYSTEM_NODES
from trnspec.experiment.naming import cluster_name, stack_name
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws, CheckedClient
from trnspec.operations.cloud.nodegroup import read

CONTROL_PLANE_ADDRESSES = 16
"""Free addresses that EKS recommends for its interfaces in a subnet; functions and the bastion use a few of them."""
INTERFACES_OF_A_NODE = 2
"""With addresses for pods: the one in use and the one that the network plugin keeps ready, full of addresses
(`WARM_ENI_TARGET`, https://docs.aws.amazon.com/eks/latest/best-practices/vpc-cni.html). EFA takes an address on the first
network card alone."""
SERVICES = (
    *("ecr.api", "ecr.dkr", "sts", "logs", "monitoring", "eks", "eks-auth"),
    *("ssm", "ssmmessages", "ec2messages", "ec2"),
)
"""Services that nodes, add-ons, pods and the bastion call: images, credentials (`eks-auth` is for Pod Identity), metrics, logs, Session
Manager, and `ec2` for the network plugin (https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html)."""
_EVERYWHERE = "0.0.0.0/0"
_DNS = {"EnableDnsSupport": "--enable-dns-support", "EnableDnsHostnames": "--enable-dns-hostnames"}
_GONE = "InvalidVpcID.NotFound", "InvalidVpcID.Malformed"
_Described = dict[str, Any]
"""A resource as EC2 describes it."""


class ExistingVpc:
    """The checks of the VPC that an experiment names. EC2 is asked once for subnets, routes and endpoints."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._experiment, self._aws = experiment, aws
        self._ids = experiment.cluster.network.private_subnets
        self._vpc = experiment.cluster.network.vpc or ""

    @property
    def _ec2(self) -> CheckedClient:
        return self._aws.client("ec2")

    def checks(self) -> dict[str, Callable[[], Finding]]:
        """Return all checks by name; empty if a deployment creates the network."""
        if not self._vpc:
            return {}
        found: dict[str, Callable[[], Finding]] = {"vpc": self.vpc}
        for zone in self._ids:
            found[f"subnet {zone}"] = partial(self.subnet, zone)
            found[f"addresses {zone}"] = partial(self.addresses, zone)
            found[f"way out {zone}"] = partial(self.way_out, zone)
        return {**found, "endpoints": self.endpoints, "control plane": self.control_plane}

    def vpc(self) -> Finding:
        """Check that the VPC exists, has both DNS options, and that the control plane is in no other network."""
        vpc, aws, own = self._vpc, self._aws, stack_name(self._experiment, "network")
        if self._ec2.find("describe_vpcs", *_GONE, VpcIds=[vpc]) is None:
            return problem_finding("vpc absent", vpc=vpc, account=aws.account, region=aws.region)
        if cloudformation.stack_named(own, aws).made:
            return problem_finding("vpc moved", stack=own, vpc=vpc, file=self._experiment.file)
        for name, option in _DNS.items():
            value = self._ec2.describe_vpc_attribute(VpcId=vpc, Attribute=name[0].lower() + name[1:])
            if not value[name]["Value"]:
                return problem_finding("vpc dns", vpc=vpc, name=name, option=option, region=aws.region)
        return fine(f"{vpc} has DNS resolution and DNS host names enabled")

    def control_plane(self) -> Finding:
        """Check that a cluster that exists stays in its VPC and zones: EKS takes no subnet of another zone for a control plane, which
        is in the first two zones of the file."""
        name = cluster_name(self._experiment)
        found = self._aws.client("eks").find("describe_cluster", "ResourceNotFoundException", name=name)
        if found is None:
            return fine(f"there is no cluster {name} yet")
        ids = found["cluster"]["resourcesVpcConfig"]["subnetIds"]
        subnets = self._asked("describe_subnets", "Subnets", "subnet-id", *ids)
        known = {"name": name, "file": self._experiment.file}
        if others := {subnet["VpcId"] for subnet in subnets} - {self._vpc}:
            return problem_finding("vpc other", **known, there=", ".join(others), vpc=self._vpc)
        zones = sorted(subnet["AvailabilityZone"] for subnet in subnets)
        if new := [zone for zone in [*self._ids][:2] if zone not in zones]:
            return problem_finding("vpc new-zone", **known, zones=", ".join(zones), new=", ".join(new))
        return fine(f"cluster {name} is in {', '.join(zones)}")

    def subnet(self, zone: str) -> Finding:
        """Check that the subnet is in this VPC and zone."""
        subnet, name = self._subnet(zone), self._ids[zone]
        there = subnet["AvailabilityZone"]
        if subnet["VpcId"] != self._vpc:
            return problem_finding(
                "subnet of-another-vpc", name=name, there=subnet["VpcId"], vpc=self._vpc, zone=zone
            )
        if there != zone:
            return problem_finding("subnet in-another-zone", name=name, there=there, zone=zone)
        return fine(f"{name}, {subnet['CidrBlock']}")

    def addresses(self, zone: str) -> Finding:
        """Check the free addresses for nodes that may still start; EC2 says how many a node's interfaces use."""
        free, parts = int(self._subnet(zone)["AvailableIpAddressCount"]), self._needed(zone)
        need, by = sum(parts.values()), ", ".join(f"{number} {what}" for what, number in parts.items())
        why = f"{self._ids[zone]} has {free} free addresses; needed: {need}{by and f' ({by})'}"
        return fine(why) if free >= need else problem_finding("subnet full", why=why, zone=zone)

    def _needed(self, zone: str) -> dict[str, int]:
        """Addresses that are not taken yet, by what takes them. System nodes spread over the zones."""
        experiment, cluster = self._experiment, self._experiment.cluster
        there = {stack.name for stack in cloudformation.deployed(experiment, self._aws) if stack.made}
        parts = {}
        if stack_name(experiment, "cluster") not in there:
            parts["for the control plane"] = CONTROL_PLANE_ADDRESSES
            spread = -(-(SYSTEM_NODES + 1) // len(self._ids))
            parts["for system nodes"] = spread * self._of_a_node(SYSTEM_INSTANCE_TYPE)
        if zone == cluster.trn2_zone:
            up = read(experiment, self._aws).desired if stack_name(experiment, "nodes") in there else 0
            parts["for Trn2 nodes"] = max(cluster.max_nodes - up, 0) * self._of_a_node(cluster.instance)
        return parts

    def _of_a_node(self, instance: str) -> int:
        (kind,) = self._ec2.describe_instance_types(InstanceTypes=[instance])["InstanceTypes"]
        return INTERFACES_OF_A_NODE * int(kind["NetworkInfo"]["Ipv4AddressesPerInterface"])

    def way_out(self, zone: str) -> Finding:
        """Check for a route to the internet that works without a public address."""
        self._subnet(zone)
        table, route = self._table(zone).get("RouteTableId", "no route table"), self._default_route(zone)
        command = f"--route-table-id {table} --destination-cidr-block {_EVERYWHERE} --nat-gateway-id nat-..."
        if route is None:
            return problem_finding("way-out none", table=table, everywhere=_EVERYWHERE, route=command)
        keys = [key for key in route if key.endswith("Id") and not key.startswith("Destination")]
        ids = [str(route[key]) for key in keys if "-" in str(route[key])]
        target = ids[0] if ids else "something without an id"  # a NAT or transit gateway, an interface ...
        way = f"{table} sends {_EVERYWHERE} to {target}"
        kind = "gone" if route.get("State") == "blackhole" else target.partition("-")[0]
        if kind in ("gone", "igw", "pcx"):
            return problem_finding(f"way-out {kind}", way=way, zone=zone, route=command)
        s3 = "; S3 goes that way too: a gateway endpoint costs nothing"
        return fine(way if self._reaches_s3(zone) else f"{way}{s3}")

    def endpoints(self) -> Finding:
        """Check the endpoints: without a route to the internet every service needs one, and each existing one must admit nodes."""
        interfaces = self._interfaces.items()
        shut = [f"{one['VpcEndpointId']} ({service})" for service, one in interfaces if not self._admits(one)]
        if shut:
            return problem_finding("endpoints shut", shut=", ".join(shut))
        cut_off = [zone for zone in self._subnets if self._default_route(zone) is None]
        missing = [service for service in SERVICES if service not in self._interfaces] if cut_off else []
        missing += ["s3"] if any(not self._reaches_s3(zone) for zone in cut_off) else []
        if missing:
            region, zones = self._aws.region, ", ".join(cut_off)
            return problem_finding(
                "endpoints missing", zones=zones, missing=", ".join(missing), region=region
            )
        return fine(f"inside the VPC: {', '.join(self._interfaces) or 'none'}; the others by the way out")

    def _asked(self, operation: str, key: str, name: str, *values: str) -> list[_Described]:
        return list(self._ec2.paginate(operation, key, Filters=[{"Name": name, "Values": list(values)}]))

    @cached_property
    def _subnets(self) -> dict[str, _Described]:
        """Return the existing subnets by zone, of any VPC."""
        found = self._asked("describe_subnets", "Subnets", "subnet-id", *self._ids.values())
        zones = {name: zone for zone, name in self._ids.items()}
        return {zones[subnet["SubnetId"]]: subnet for subnet in found}

    def _subnet(self, zone: str) -> _Described:
        if zone in self._subnets:
            return self._subnets[zone]
        account, region = self._aws.account, self._aws.region
        known = {"name": self._ids[zone], "zone": zone, "account": account, "region": region}
        raise Refusal(problem_finding("subnet absent", **known))

    @cached_property
    def _tables(self) -> list[_Described]:
        return self._asked("describe_route_tables", "RouteTables", "vpc-id", self._vpc)

    def _table(self, zone: str) -> _Described:
        """Return the subnet's own route table, else the main one."""
        joined = [(link, table) for table in self._tables for link in table.get("Associations", ())]
        own = (table for one, table in joined if one.get("SubnetId") == self._ids[zone])
        return next(own, next((table for one, table in joined if one.get("Main")), {}))

    def _default_route(self, zone: str) -> _Described | None:
        routes = self._table(zone).get("Routes", ())
        return next((route for route in routes if route.get("DestinationCidrBlock") == _EVERYWHERE), None)

    @cached_property
    def _endpoints(self) -> list[_Described]:
        found = self._asked("describe_vpc_endpoints", "VpcEndpoints", "vpc-id", self._vpc)
        return [endpoint for endpoint in found if str(endpoint.get("State")).lower() == "available"]

    @cached_property
    def _interfaces(self) -> dict[str, _Described]:
        """Return endpoints with a service's usual DNS name, by service."""
        prefix = f"com.amazonaws.{self._aws.region}."
        kind = [endpoint for endpoint in self._endpoints if endpoint.get("VpcEndpointType") == "Interface"]
        kind = [endpoint for endpoint in kind if endpoint.get("PrivateDnsEnabled")]
        named = {endpoint["ServiceName"].removeprefix(prefix): endpoint for endpoint in kind}
        return {service: one for service, one in named.items() if service in (*SERVICES, "s3")}

    def _reaches_s3(self, zone: str) -> bool:
        table = self._table(zone).get("RouteTableId")
        gateways = [endpoint for endpoint in self._endpoints if table in endpoint.get("RouteTableIds", ())]
        return "s3" in self._interfaces or any(gateway["ServiceName"].endswith(".s3") for gateway in gateways)

    def _admits(self, endpoint: _Described) -> bool:
        """Return whether rules admit every subnet by its addresses."""
        groups = [group["GroupId"] for group in endpoint.get("Groups", ())]
        described = self._ec2.describe_security_groups(GroupIds=groups)["SecurityGroups"] if groups else []
        rules = [rule for group in described for rule in group["IpPermissions"] if _opens_https(rule)]
        wide = [network["CidrIp"] for rule in rules for network in rule.get("IpRanges", ())]
        lists = [entry["PrefixListId"] for rule in rules for entry in rule.get("PrefixListIds", ())]
        for name in dict.fromkeys(lists):
            entries = self._ec2.paginate("get_managed_prefix_list_entries", "Entries", PrefixListId=name)
            wide += [entry["Cidr"] for entry in entries if ":" not in entry["Cidr"]]
        inside = [IPv4Network(known["CidrBlock"]) for known in self._subnets.values()]
        return all(any(subnet.subnet_of(IPv4Network(other)) for other in wide) for subnet in inside)


def _opens_https(rule: _Described) -> bool:
    within: bool = rule.get("FromPort", 0) <= 443 <= rule.get("ToPort", 65535)
    return rule["IpProtocol"] == "-1" or (rule["IpProtocol"] == "tcp" and within)


@cache
def _sentences() -> dict[str, dict[str, str]]:
    """Return the sentences of `existing_vpc.yaml`, read when the first is needed."""
    return dict(table_of(__file__))


def problem_finding(name: str, /, **words: object) -> Finding:
    """Return the finding of that name."""
    text = _sentences()[name]
    return finding(text["why"].format(**words), text["remedy"].format(**words))
