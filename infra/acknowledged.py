"""What the rules find and we keep, each with its reason.

Findings of cdk-nag's AwsSolutions pack, and rights on `Resource: "*"`. The tests fail on a finding that stands in no
entry, and on an entry that nothing matches any more. A place is a construct path below its stack, so that neither the
name of an experiment nor a logical id that CDK hashes can break a match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """One finding, wherever an experiment's stacks have it."""

    rule: str
    """As AwsSolutions numbers it."""
    place: str
    """Stack and construct as a regular expression, e.g. `nodes/NeuronNodes/Role`."""
    what: str = ""
    """Regular expression for what the rule names, where it names something: a policy, an action, a resource."""
    reason: str

    def covers(self, rule: str, path: str, what: str) -> bool:
        """Whether this is that finding; `path` may carry a stage in front and a resource behind."""
        place = re.search(rf"(^|/){self.place}(/|$)", path)
        return rule == self.rule and place is not None and re.fullmatch(self.what, what) is not None


_EKS_POLICY = "AWS maintains this policy with EKS and asks for it by name; its own text would lag behind"
_OBJECTS = "the keys below the prefix are not known beforehand; bucket and action are exact"
_LAMBDA_OF_CDK = "the kubectl provider is CDK's construct, which gives its functions these policies"
_NO_RESOURCE = "the action knows no resource"
_CODEBUILD = "CDK's grant for the source; the bucket is the one of the deployment's assets"

ACKNOWLEDGED = (
    Acknowledged(
        rule="IAM4", place="cluster/Cluster/Role", what=".*/AmazonEKSClusterPolicy", reason=_EKS_POLICY
    ),
    Acknowledged(
        rule="IAM4",
        place="cluster/SystemNodes/Role",
        what=".*/AmazonEKSWorkerNodePolicy",
        reason=_EKS_POLICY,
    ),
    Acknowledged(
        rule="IAM4",
        place="cluster/SystemNodes/Role",
        what=".*/AmazonEC2ContainerRegistryPullOnly",
        reason=_EKS_POLICY,
    ),
    Acknowledged(
        rule="IAM4", place="nodes/NeuronNodes/Role", what=".*/AmazonEKSWorkerNodePolicy", reason=_EKS_POLICY
    ),
    Acknowledged(
        rule="IAM4",
        place="nodes/NeuronNodes/Role",
        what=".*/AmazonEC2ContainerRegistryPullOnly",
        reason=_EKS_POLICY,
    ),
    Acknowledged(
        rule="IAM4",
        place="cluster/Addons/NetworkPluginRole",
        what=".*/AmazonEKS_CNI_Policy",
        reason=_EKS_POLICY,
    ),
    Acknowledged(
        rule="IAM5",
        place="cluster/Addons/ObservabilityRole",
        what=r".*:log-group:/aws/containerinsights/.*:log-stream:\*",
        reason="the agent names its streams after nodes and pods",
    ),
    Acknowledged(
        rule="IAM5",
        place="cluster/Addons/ObservabilityRole",
        what=r"Resource::\*",
        reason=f"{_NO_RESOURCE}; metrics go to one namespace",
    ),
    Acknowledged(rule="IAM5", place="cluster/WayIn/Role", what=r"Resource::\*", reason=_NO_RESOURCE),
    Acknowledged(
        rule="AS3",
        place="cluster/WayIn/Group",
        reason="a group of one that nothing depends on but a kubectl from outside; whoever uses it sees it missing",
    ),
    Acknowledged(
        rule="IAM5",
        place="nodes/TimeToLive/Off",
        what=r".*:nodegroup/.*-trn2-[a-z0-9-]+/\*",
        reason="EKS ends the ARN of a node group with an id of its own; cluster and name are exact",
    ),
    Acknowledged(
        rule="SQS3",
        place="nodes/TimeToLive/Failures",
        reason="it is the dead-letter queue, of schedules, which the rule does not know",
    ),
    Acknowledged(rule="IAM5", place="identity/Serving/Role", what=r".*Checkpoints.*/\*", reason=_OBJECTS),
    Acknowledged(rule="IAM5", place="identity/Serving/Role", what=r".*Artifacts.*/\*", reason=_OBJECTS),
    Acknowledged(rule="IAM5", place="identity/Fetch/Role", what=r".*Checkpoints.*/\*", reason=_OBJECTS),
    Acknowledged(rule="IAM5", place="identity/Compile/Role", what=r".*Checkpoints.*/\*", reason=_OBJECTS),
    Acknowledged(rule="IAM5", place="identity/Compile/Role", what=r".*Artifacts.*/\*", reason=_OBJECTS),
    Acknowledged(rule="IAM5", place="identity/Benchmark/Role", what=r".*Results.*/runs/\*", reason=_OBJECTS),
    Acknowledged(rule="IAM5", place="identity/Benchmark/Role", what=r".*Results.*/plans/\*", reason=_OBJECTS),
    Acknowledged(
        rule="IAM5",
        place="identity/Benchmark/Role",
        what=r"Resource::\*",
        reason=f"{_NO_RESOURCE}; a condition names one namespace",
    ),
    Acknowledged(
        rule="IAM4",
        place="workloads/Access/Provider/Handler/ServiceRole",
        what=r".*(LambdaBasicExecutionRole|VPCAccessExecutionRole|Registry(Public)?ReadOnly).*",
        reason=_LAMBDA_OF_CDK,
    ),
    Acknowledged(
        rule="IAM4",
        place="workloads/Access/Provider/Provider/framework-onEvent/ServiceRole",
        what=r".*(LambdaBasicExecutionRole|VPCAccessExecutionRole)",
        reason=_LAMBDA_OF_CDK,
    ),
    Acknowledged(
        rule="IAM5",
        place="workloads/Access/Provider/Provider/framework-onEvent/ServiceRole",
        what=r".*Handler.*:\*",
        reason="CDK's provider framework may call any version of the one function that it wraps",
    ),
    Acknowledged(
        rule="L1",
        place="workloads/Access/Provider/Handler",
        reason="the handler's runtime is chosen by the CDK release that brings its code",
    ),
    Acknowledged(
        rule="IAM5", place=r"workloads/Images/\w+Project/Role", what="Action::.*", reason=_CODEBUILD
    ),
    Acknowledged(
        rule="IAM5",
        place=r"workloads/Images/\w+Project/Role",
        what=r"Resource::\*",
        reason="logging in to the registry knows no resource",
    ),
    Acknowledged(
        rule="IAM5",
        place=r"workloads/Images/\w+Project/Role",
        what=r"Resource::.+\*",
        reason="the sources of one asset, and the streams of the project's own log group",
    ),
    Acknowledged(
        rule="CB4",
        place=r"workloads/Images/\w+Project",
        reason="the project stores nothing; its result is an image, which the registry encrypts",
    ),
)

ANY_RESOURCE = {
    ("identity", "cloudwatch:PutMetricData"): "knows no resource; the statement names one namespace",
    ("cluster", "cloudwatch:PutMetricData"): "knows no resource; the statement names one namespace",
    ("cluster", "ec2:DescribeTags"): "knows no resource; reads names of instances",
    ("cluster", "ec2:DescribeVolumes"): "knows no resource; reads names of disks",
    (
        "cluster",
        "ssm:UpdateInstanceInformation",
    ): "the agent reports an instance whose id is not known beforehand",
    ("cluster", "ssmmessages:CreateControlChannel"): "knows no resource; sessions through the way in",
    ("cluster", "ssmmessages:CreateDataChannel"): "knows no resource; sessions through the way in",
    ("cluster", "ssmmessages:OpenControlChannel"): "knows no resource; sessions through the way in",
    ("cluster", "ssmmessages:OpenDataChannel"): "knows no resource; sessions through the way in",
    ("workloads", "ecr:GetAuthorizationToken"): "knows no resource; CodeBuild logs in to the registry",
}
"""Actions that may stand with `Resource: "*"` in a stack, each with its reason."""
