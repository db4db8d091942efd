"""One stack: created without the command line, and accounted for whoever created it."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from experiment.finding import Refusal
from lab.aws import moto_types
from lab.aws.accounting import Resource, account_for
from lab.aws.assembly import StackTemplate


def create(stack: StackTemplate, cloudformation: Any) -> None:
    """`create-stack` with the template as it is. Raises `Refusal` where it is refused."""
    try:
        cloudformation.create_stack(
            StackName=stack.name,
            TemplateBody=stack.body,
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
            Tags=[{"Key": key, "Value": value} for key, value in stack.tags.items()],
        )
    except ClientError as error:
        raise Refusal(f"stack {stack.name}: {error.response['Error']['Message']}") from error


def account_of(
    stack: StackTemplate, cloudformation: Any, *, account: str, region: str
) -> tuple[Resource, ...]:
    """What became of every resource of its template. Raises `Refusal`."""
    try:
        (found,) = cloudformation.describe_stacks(StackName=stack.name)["Stacks"]
    except ClientError as error:
        raise Refusal(f"stack {stack.name}: {error.response['Error']['Message']}") from error
    if found["StackStatus"] != "CREATE_COMPLETE":
        raise Refusal(f"stack {stack.name}: ended as {found['StackStatus']}, not CREATE_COMPLETE")
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack.name)
    listed = {
        one["LogicalResourceId"]: one.get("PhysicalResourceId", "")
        for page in pages
        for one in page["StackResourceSummaries"]
        if one.get("LogicalResourceId")
    }
    return account_for(
        stack.name,
        stack.template,
        listed=listed,
        false_conditions=moto_types.false_conditions(stack.name, account=account, region=region),
        outcome_of=moto_types.outcome_of,
    )
