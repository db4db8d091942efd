"""What moto's CloudFormation does not delete with a stack, by the API call that CloudFormation would make; everything else goes
as moto does it. Policies, rules, routes and schedules go with what they belong to. And termination protection, which moto keeps
and does not honour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.responses import ActionResult

Api = Callable[[str], Any]


def _cluster(name: str, api: Api) -> None:
    """With the group that EKS made."""
    network = api("eks").describe_cluster(name=name)["cluster"]["resourcesVpcConfig"]
    api("eks").delete_cluster(name=name)
    api("ec2").delete_security_group(GroupId=network["clusterSecurityGroupId"])


def _node_group(name: str, api: Api) -> None:
    cluster, group = name.split("/")
    api("eks").delete_nodegroup(clusterName=cluster, nodegroupName=group)


def _gateway(name: str, api: Api) -> None:
    ec2 = api("ec2")
    (found,) = ec2.describe_internet_gateways(InternetGatewayIds=[name])["InternetGateways"]
    for one in found["Attachments"]:
        ec2.detach_internet_gateway(InternetGatewayId=name, VpcId=one["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=name)


def _route_table(name: str, api: Api) -> None:
    ec2 = api("ec2")
    endpoints = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    if any(name in one.get("RouteTableIds", ()) and one["State"] != "deleted" for one in endpoints):
        raise LookupError(f"{name} is in use; moto tries again after the endpoints")
    (found,) = ec2.describe_route_tables(RouteTableIds=[name])["RouteTables"]
    for one in found["Associations"]:
        ec2.disassociate_route_table(AssociationId=one["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=name)


def _policies(name: str, api: Api) -> None:
    """IAM wants them detached before the role goes, which moto then does."""
    for one in api("iam").list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        api("iam").detach_role_policy(RoleName=name, PolicyArn=one["PolicyArn"])


_GONE: Mapping[str, Callable[[str, Api], object]] = {
    "AWS::CloudWatch::Alarm": lambda name, api: api("cloudwatch").delete_alarms(AlarmNames=[name]),
    "AWS::EC2::EIP": lambda name, api: api("ec2").release_address(PublicIp=name),
    "AWS::EC2::FlowLog": lambda name, api: api("ec2").delete_flow_logs(FlowLogIds=[name]),
    "AWS::EC2::InternetGateway": _gateway,
    "AWS::EC2::NatGateway": lambda name, api: api("ec2").delete_nat_gateway(NatGatewayId=name),
    "AWS::EC2::RouteTable": _route_table,
    "AWS::EC2::VPCEndpoint": lambda name, api: api("ec2").delete_vpc_endpoints(VpcEndpointIds=[name]),
    "AWS::EKS::Cluster": _cluster,
    "AWS::EKS::Nodegroup": _node_group,
    "AWS::SNS::Subscription": lambda name, api: api("sns").unsubscribe(SubscriptionArn=name),
    "AWS::Scheduler::ScheduleGroup": lambda name, api: api("scheduler").delete_schedule_group(Name=name),
}
_BEFORE: Mapping[str, Callable[[str, Api], object]] = {"AWS::IAM::Role": _policies}


@contextmanager
def protection_honoured() -> Iterator[None]:
    """A protected stack is not deleted, and UpdateTerminationProtection is answered."""
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
        stack.enable_termination_protection = response._get_bool_param("EnableTerminationProtection")
        return ActionResult({"StackId": stack.stack_id})

    CloudFormationBackend.delete_stack = delete_stack  # type: ignore[method-assign]
    CloudFormationResponse.update_termination_protection = update  # type: ignore[attr-defined]
    try:
        yield
    finally:
        CloudFormationBackend.delete_stack = remove  # type: ignore[method-assign]
        del CloudFormationResponse.update_termination_protection  # type: ignore[attr-defined]


def removing(remove: Callable[..., None], client_of: Callable[[str, str], Any]) -> Callable[..., None]:
    """moto's own way of deleting a resource, with these in its place or before it."""

    def delete(resources: Any, parsed: Any, body: Mapping[str, Any]) -> None:
        kind, name = body["Type"], getattr(parsed, "physical_resource_id", "")

        def api(service: str) -> Any:
            return client_of(service, resources._region_name)

        if kind in _BEFORE:
            _BEFORE[kind](name, api)
        if kind in _GONE:
            _GONE[kind](name, api)
        else:
            remove(resources, parsed, body)

    return delete
