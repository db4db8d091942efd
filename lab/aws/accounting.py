"""The account of a rehearsal: every resource of every template, each with what became of it.

moto skips what it does not know and reports CREATE_COMPLETE, so a rehearsal without this account would hide what it left
out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from core.findings import Refusal
from lab.aws.assembly import StackTemplate
from lab.aws.moto_models import Outcome, false_conditions, outcome_of


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource of one template."""

    stack: str
    logical_id: str
    type: str
    outcome: Outcome
    physical_id: str
    """Of created resources, where moto's model has one; empty for all others."""


def create(stack: StackTemplate, cloudformation: Any) -> None:
    """`create-stack` with the template as it is. Raises `Refusal` where CloudFormation refuses it."""
    try:
        cloudformation.create_stack(
            StackName=stack.name,
            TemplateBody=stack.body,
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
            Tags=[{"Key": key, "Value": value} for key, value in stack.tags.items()],
            EnableTerminationProtection=stack.protected,
        )
    except ClientError as error:
        raise Refusal(f"stack {stack.name}: {error.response['Error']['Message']}") from error


def account_of(stack: StackTemplate, cloudformation: Any, *, region: str) -> tuple[Resource, ...]:
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
    absent = false_conditions(stack.name, region=region)
    return account_for(stack.name, stack.template, listed=listed, false_conditions=absent)


def account_for(
    stack: str,
    template: Mapping[str, Any],
    *,
    listed: Mapping[str, str],
    false_conditions: Collection[str],
) -> tuple[Resource, ...]:
    """Give every resource of the template an outcome.

    `listed` maps the logical ids that the stack has afterwards to physical ids. `Refusal` names what the template
    asks for and the stack does not have, and what the stack has and the template does not ask for.
    """
    wanted: Mapping[str, Any] = template["Resources"]
    skipped = {name for name, one in wanted.items() if one.get("Condition") in false_conditions}
    missing = [
        f"{name} ({wanted[name]['Type']})" for name in wanted if name not in listed and name not in skipped
    ]
    unasked = [name for name in listed if name not in wanted or name in skipped]
    if missing or unasked:
        raise Refusal(
            f"stack {stack}: not created and not explained: {', '.join(missing) or 'none'}; "
            f"there without being asked for: {', '.join(unasked) or 'none'}; "
            "model the type in lab/aws/moto_models.py or let it count as not modelled"
        )
    outcomes = {
        name: outcome_of(one["Type"]) if name in listed else Outcome.SKIPPED for name, one in wanted.items()
    }
    return tuple(
        Resource(
            stack=stack,
            logical_id=name,
            type=wanted[name]["Type"],
            outcome=outcome,
            physical_id=listed[name] if outcome is Outcome.CREATED else "",
        )
        for name, outcome in outcomes.items()
    )
