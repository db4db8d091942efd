"""What the add-ons that call AWS may do there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from infra.constructs.pod_role import POD_IDENTITY
from infra.naming import container_insights_log_groups

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment


def network_plugin_role(scope: Construct) -> iam.Role:
    """Network interfaces and addresses of nodes: AWS keeps that list with the plugin's releases."""
    return iam.Role(
        scope,
        "NetworkPluginRole",
        assumed_by=iam.ServicePrincipal(POD_IDENTITY).with_session_tags(),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKS_CNI_Policy")],
    )


def observability_role(scope: Construct, experiment: Experiment) -> iam.Role:
    """The agent and Fluent Bit write to the log groups of this cluster, from which CloudWatch takes the metrics.

    The managed CloudWatchAgentServerPolicy would open every log group, X-Ray and parameters as well.
    """
    groups = [
        f"arn:{cdk.Aws.PARTITION}:logs:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}:log-group:{name}"
        for name in container_insights_log_groups(experiment)
    ]
    return iam.Role(
        scope,
        "ObservabilityRole",
        assumed_by=iam.ServicePrincipal(POD_IDENTITY).with_session_tags(),
        inline_policies={"write": iam.PolicyDocument(statements=_observing(groups))},
    )


def _observing(groups: list[str]) -> list[iam.PolicyStatement]:
    return [
        iam.PolicyStatement(
            sid="WriteLogs",
            actions=[
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            resources=[arn for group in groups for arn in (group, f"{group}:log-stream:*")],
        ),
        # These know no resource; the agent names disks and instances with what it reads:
        # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
        iam.PolicyStatement(
            sid="NameWhatIsMeasured",
            actions=["ec2:DescribeTags", "ec2:DescribeVolumes"],
            resources=["*"],
        ),
        iam.PolicyStatement(
            sid="PublishMetrics",
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": "ContainerInsights"}},
        ),
    ]
