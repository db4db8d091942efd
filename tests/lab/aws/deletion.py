"""What moto leaves behind when a stack is deleted, deleted by the API call that CloudFormation would make; and termination protection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend
from moto.cloudformation.parsing import ResourceMap
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.responses import ActionResult

from trnspec.lab.aws.moto_server import client

Api = Callable[[str], Any]
"""A client of a service, in the region of the stack."""


def _delete_cluster(name: str, api: Api) -> None:
    """EKS deletes its own security group too."""
    network = api("eks").describe_cluster(name=name)["cluster"]["resourcesVpcConfig"]
    api("eks").delete_cluster(name=name)
    api("ec2").delete_security_group(GroupId=network["clusterSecurityGroupId"])


def _delete_node_group(name: str, api: Api) -> None:
    cluster, group = name.split("/")
    api("eks").delete_nodegroup(clusterName=cluster, nodegroupName=group)


def _delete_gateway(name: str, api: Api) -> None:
    ec2 = api("ec2")
    (gateway,) = ec2.describe_internet_gateways(InternetGatewayIds=[name])["InternetGateways"]
    for attachment in gateway["Attachments"]:
        ec2.detach_internet_gateway(InternetGatewayId=name, VpcId=attachment["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=name)


def _delete_route_table(name: str, api: Api) -> None:
    ec2 = api("ec2")
    endpoints = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    if any(name in one.get("RouteTableIds", ()) and one["State"] != "deleted" for one in endpoints):
        raise LookupError(f"{name} is in use; moto tries again after the endpoints")
    (table,) = ec2.describe_route_tables(RouteTableIds=[name])["RouteTables"]
    for association in table["Associations"]:
        ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=name)


_DELETED: Mapping[str, Callable[[str, Api], object]] = {
    "AWS::CloudWatch::Alarm": lambda name, api: api("cloudwatch").delete_alarms(AlarmNames=[name]),
    "AWS::EC2::EIP": lambda name, api: api("ec2").release_address(PublicIp=name),
    "AWS::EC2::FlowLog": lambda name, api: api("ec2").delete_flow_logs(FlowLogIds=[name]),
    "AWS::EC2::InternetGateway": _delete_gateway,
    "AWS::EC2::NatGateway": lambda name, api: api("ec2").delete_nat_gateway(NatGatewayId=name),
    "AWS::EC2::RouteTable": _delete_route_table,
    "AWS::EC2::VPCEndpoint": lambda name, api: api("ec2").delete_vpc_endpoints(VpcEndpointIds=[name]),
    "AWS::EKS::Cluster": _delete_cluster,
    "AWS::EKS::Nodegroup": _delete_node_group,
    "AWS::SNS::Subscription": lambda name, api: api("sns").unsubscribe(SubscriptionArn=name),
    "AWS::Scheduler::ScheduleGroup": lambda name, api: api("scheduler").delete_schedule_group(Name=name),
}
_delete_as_moto = ResourceMap._delete_resource


def _delete_resource(resources: ResourceMap, parsed: Any, body: dict[str, Any], *, endpoint: str) -> None:
    kind, name = body["Type"], getattr(parsed, "physical_resource_id", "")
    api = partial(client, endpoint=endpoint, region=resources._region_name)
    if kind == "AWS::IAM::Role":  # IAM wants policies detached before the role goes
        for policy in api("iam").list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
            api("iam").detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    if kind in _DELETED:
        _DELETED[kind](name, api)
    else:
        _delete_as_moto(resources, parsed, body)


@contextmanager
def protection_honoured() -> Iterator[None]:
    """A protected stack is not deleted, and UpdateTerminationProtection is answered; moto keeps the setting only."""
    remove = CloudFormationBackend.delete_stack

    def delete_stack(self: CloudFormationBackend, name_or_stack_id: str) -> None:
        for stack in self.stacks.values():
            if name_or_stack_id in (stack.name, stack.stack_id) and stack.enable_termination_protection:
                raise ValidationError(
                    message=f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled"
                )
        remove(self, name_or_stack_id)

    def update(response: CloudFormationResponse) -> ActionResult:
        (stack,) = response.cloudformation_backend.describe_stacks(response._get_param("StackName"))
        stack.enable_termination_protection = bool(response._get_bool_param("EnableTerminationProtection"))
        return ActionResult({"StackId": stack.stack_id})

    with (
        patch.object(CloudFormationBackend, "delete_stack", delete_stack),
        patch.object(CloudFormationResponse, "update_termination_protection", update, create=True),
    ):
        yield


@contextmanager
def deletion(endpoint: str) -> Iterator[None]:
    """Let the rehearsal's server at `endpoint` delete whole stacks, but no protected one."""

    def delete(resources: ResourceMap, parsed: Any, body: dict[str, Any]) -> None:
        _delete_resource(resources, parsed, body, endpoint=endpoint)

    with patch.object(ResourceMap, "_delete_resource", delete), protection_honoured():
        yield
