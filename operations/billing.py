"""What still carries the experiment's tag, and what of that bills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from operations.stacks import TAG

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

_BILLS = {
    "cloudwatch:alarm": "$0.10 a month each",
    "ec2:instance": "by the hour, while it runs",
    "ec2:natgateway": "by the hour, and traffic",
    "ec2:elastic-ip": "by the hour",
    "ec2:vpc-endpoint": "by the hour, interface endpoints only",
    "ec2:volume": "by size",
    "ecr:repository": "by size of its images",
    "eks:cluster": "by the hour",
    "elasticloadbalancing:loadbalancer": "by the hour",
    "kms:key": "$1 a month until deleted",
    "logs:log-group": "by size, until its retention ends",
    "s3:": "by size; emptying and deleting it loses weights, artifacts or results",
}
"""Service and resource type of an ARN; what is not listed costs nothing by itself."""


@dataclass(frozen=True)
class Resource:
    """Something with the tag."""

    arn: str
    what: str


def tagged(experiment: Experiment, aws: Aws) -> list[Resource]:
    """What bills, of everything with the tag in the experiment's region."""
    entries = aws.client("resourcegroupstaggingapi").every(
        "get_resources", "ResourceTagMappingList", TagFilters=[{"Key": TAG, "Values": [experiment.name]}]
    )
    found = [Resource(entry["ResourceARN"], bills(entry["ResourceARN"])) for entry in entries]
    return sorted((one for one in found if one.what), key=lambda one: one.arn)


def bills(arn: str) -> str:
    """How a resource bills; empty when it does not."""
    service, _, _, resource = arn.split(":", 5)[2:]
    kind = resource.replace(":", "/").split("/", 1)[0]
    return _BILLS.get(f"{service}:{kind}") or _BILLS.get(f"{service}:", "")
