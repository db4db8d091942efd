"""What cdk-nag finds and we keep, said at the construct that has it, with the reason."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import IConstruct

PACK = "AwsSolutions"
EKS_POLICY = "AWS maintains this policy with EKS and asks for it by name; its own text would lag behind"
UNKNOWN_KEYS = "the keys below the prefix are not known beforehand; bucket and action are exact"
NODE_GROUP_ID = "EKS ends the ARN of a node group with an id of its own; cluster and name are exact"
NO_RESOURCE = "the action knows no resource"
SOURCE = "CDK's grant for the source; the bucket is the one of the deployment's assets"
OWN_LOGS = "streams of the build's own log group"
BUILD_LOGS = r"Resource::arn:aws:logs:.*:log-group:/aws/codebuild/<.*>:\*"


def acknowledge(scope: IConstruct, rule: str, reason: str, *named: str) -> None:
    """Of a rule, e.g. `IAM5`, at the construct and inside it. `named` are regular expressions over what the rule names there,
    e.g. `Resource::\\*`, and none where it names nothing."""
    id_ = f"{PACK}::{PACK}-{rule}"
    ids = [f"{id_}[{one}]" for one in named] or [id_]
    cdk.Validations.of(scope).acknowledge(*(cdk.Acknowledgment(id=one, reason=reason) for one in ids))
