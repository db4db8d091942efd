"""CloudFormation models that moto lacks of things that moto's APIs have: each calls the API that CloudFormation would.

The SDK checks the parameters against its own model of the service, and what was made can be read through the API
afterwards. CloudFormation's names of properties are the API's names of parameters, but for what `_ORDERS` changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError
from moto.cloudformation.exceptions import ValidationError
from moto.core.common_models import CloudFormationModel

Properties = Mapping[str, Any]
ClientOf = Callable[[str, str, str], Any]
"""Makes a client from the name of a service, an account and a region."""
_clients: list[ClientOf] = []


@contextmanager
def calling(client_of: ClientOf) -> Iterator[None]:
    """Let the models call through `client_of` for a while."""
    _clients.append(client_of)
    try:
        yield
    finally:
        _clients.remove(client_of)


@dataclass(frozen=True, kw_only=True)
class Order:
    """How a resource of one type is made."""

    service: str
    call: str
    """The client's method."""
    name: str = ""
    """Property that names the resource; CloudFormation makes a name up where the template gives none."""
    physical_id: Callable[[Properties, Mapping[str, Any]], str]
    """From properties and answer."""
    arguments: Callable[[Properties], list[Mapping[str, Any]]] = lambda properties: [properties]
    """Parameters of each call."""


def _egress(properties: Properties) -> list[Mapping[str, Any]]:
    flat = {name: properties[name] for name in ("IpProtocol", "FromPort", "ToPort") if name in properties}
    where: dict[str, Any] = {}
    if "CidrIp" in properties:
        where["IpRanges"] = [{"CidrIp": properties["CidrIp"]}]
    if "CidrIpv6" in properties:
        where["Ipv6Ranges"] = [{"CidrIpv6": properties["CidrIpv6"]}]
    if "DestinationSecurityGroupId" in properties:
        where["UserIdGroupPairs"] = [{"GroupId": properties["DestinationSecurityGroupId"]}]
    return [{"GroupId": properties["GroupId"], "IpPermissions": [{**flat, **where}]}]


def _topic_policies(properties: Properties) -> list[Mapping[str, Any]]:
    policy = json.dumps(properties["PolicyDocument"])
    return [
        {"TopicArn": topic, "AttributeName": "Policy", "AttributeValue": policy}
        for topic in properties["Topics"]
    ]


def _queue_policies(properties: Properties) -> list[Mapping[str, Any]]:
    policy = json.dumps(properties["PolicyDocument"])
    return [{"QueueUrl": queue, "Attributes": {"Policy": policy}} for queue in properties["Queues"]]


_ORDERS: Mapping[str, Order] = {
    "AWS::CloudWatch::Alarm": Order(
        service="cloudwatch",
        call="put_metric_alarm",
        name="AlarmName",
        physical_id=lambda p, _: p["AlarmName"],
    ),
    "AWS::EC2::SecurityGroupEgress": Order(
        service="ec2",
        call="authorize_security_group_egress",
        physical_id=lambda p, _: f"{p['GroupId']}-egress",
        arguments=_egress,
    ),
    "AWS::SNS::Subscription": Order(
        service="sns", call="subscribe", physical_id=lambda _, answer: answer["SubscriptionArn"]
    ),
    "AWS::SNS::TopicPolicy": Order(
        service="sns",
        call="set_topic_attributes",
        physical_id=lambda p, _: p["Topics"][0],
        arguments=_topic_policies,
    ),
    "AWS::SQS::QueuePolicy": Order(
        service="sqs",
        call="set_queue_attributes",
        physical_id=lambda p, _: p["Queues"][0],
        arguments=_queue_policies,
    ),
    "AWS::Scheduler::Schedule": Order(
        service="scheduler", call="create_schedule", name="Name", physical_id=lambda p, _: p["Name"]
    ),
    "AWS::Scheduler::ScheduleGroup": Order(
        service="scheduler", call="create_schedule_group", name="Name", physical_id=lambda p, _: p["Name"]
    ),
}


class ApiModel(CloudFormationModel):
    """A resource that was made by a call."""

    def __init__(self, resource_type: str, physical_id: str, answer: Mapping[str, Any]) -> None:
        self.type = resource_type
        self.physical_resource_id = physical_id
        self._answer = answer

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "lab::ApiModel"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    def get_cfn_attribute(self, attribute: str) -> str:
        """`Arn` where the call answered with one."""
        found = [value for key, value in self._answer.items() if attribute == "Arn" and key.endswith("Arn")]
        if not found:
            raise ValidationError(message=f"{self.type} has no attribute {attribute} in the rehearsal")
        return str(found[0])


def _model_of(resource_type: str, order: Order) -> type[CloudFormationModel]:
    def create_from_cloudformation_json(
        cls: type[ApiModel],
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> ApiModel:
        properties = dict(cloudformation_json["Properties"])
        if order.name:
            properties.setdefault(order.name, resource_name)
        answer: Mapping[str, Any] = {}
        client = _clients[-1](order.service, account_id, region_name)
        for arguments in order.arguments(properties):
            try:
                answer = getattr(client, order.call)(**arguments)
            except (ClientError, ParamValidationError) as error:
                raise ValidationError(message=f"{order.call}: {' '.join(str(error).split())}") from error
        return cls(resource_type, order.physical_id(properties, answer), answer)

    make: Any = create_from_cloudformation_json
    members = {
        "__module__": __name__,
        "cloudformation_type": staticmethod(lambda: resource_type),
        "cloudformation_name_type": staticmethod(lambda: order.name),
        "create_from_cloudformation_json": classmethod(make),
    }
    return type(f"Api{resource_type.replace('::', '')}", (ApiModel,), members)


API_MODELS: Mapping[str, type[CloudFormationModel]] = {
    resource_type: _model_of(resource_type, order) for resource_type, order in _ORDERS.items()
}
