"""What still carries a tag of the experiment or of its cluster, and what of that bills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.naming import cluster_name
from operations.stacks import TAG

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

_BILLS = {
    "cloudwatch:alarm": "$0.10 a month each",
    "ec2:capacity-reservation": "by the hour, used or not; a capacity block is paid in advance",
    "ec2:instance": "by the hour, while it runs",
    "ec2:natgateway": "by the hour, and traffic",
    "ec2:elastic-ip": "by the hour",
    "ec2:vpc-endpoint": "by the hour, interface endpoints only",
    "ec2:snapshot": "by size",
    "ec2:volume": "by size",
    "ecr:repository": "by size of its images",
    "eks:cluster": "by the hour",
    "elasticloadbalancing:loadbalancer": "by the hour",
    "kms:key": "$1 a month until deleted",
    "logs:log-group": "by size, until its retention ends",
    "secretsmanager:secret": "$0.40 a month",
    "s3:": "by size; emptying and deleting it loses weights, artifacts or results",
}
"""Service and resource type of an ARN; what is not listed costs nothing by itself."""


@dataclass(frozen=True)
class Resource:
    """Something with the tag."""

    arn: str
    what: str


def tagged(experiment: Experiment, aws: Aws) -> list[Resource]:
    """What bills, of everything with one of the tags in the experiment's region."""
    client = aws.client("resourcegroupstaggingapi")
    arns = {
        entry["ResourceARN"]
        for tag in _tags(experiment)
        for entry in client.every("get_resources", "ResourceTagMappingList", TagFilters=[tag])
    }
    return [Resource(arn, what) for arn in sorted(arns) if (what := bills(arn))]


def _tags(experiment: Experiment) -> tuple[dict[str, Any], ...]:
    """CloudFormation's, and what the cluster's controllers put on load balancers, volumes and instances that no stack
    knows of (https://docs.aws.amazon.com/eks/latest/userguide/eks-using-tags.html,
    https://kubernetes.io/docs/reference/labels-annotations-taints/)."""
    cluster = cluster_name(experiment)
    return (
        {"Key": TAG, "Values": [experiment.name]},
        {"Key": "aws:eks:cluster-name", "Values": [cluster]},
        {"Key": "eks:cluster-name", "Values": [cluster]},
        {"Key": f"kubernetes.io/cluster/{cluster}"},
    )


def bills(arn: str) -> str:
    """How a resource bills; empty when it does not."""
    service, _, _, resource = arn.split(":", 5)[2:]
    kind = resource.replace(":", "/").split("/", 1)[0]
    return _BILLS.get(f"{service}:{kind}") or _BILLS.get(f"{service}:", "")
