"""EKS add-ons, in the order in which a new cluster can take them, and what those that call AWS may do there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from experiment.naming import container_insights_log_groups
from infra.constructs.kept_logs import log_group
from infra.pins import addon_version
from infra.stacks.identity import POD_IDENTITY

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment

if TYPE_CHECKING:
    from aws_cdk import aws_iam as iam

    from experiment import Experiment
    from infra.constructs.node_launch import SystemNodes
    from infra.settings import Settings


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


OBSERVABILITY = "amazon-cloudwatch-observability"
BEFORE_NODES: dict[str, dict[str, Any]] = {
    "eks-pod-identity-agent": {},
    # https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html
    "vpc-cni": {"enableNetworkPolicy": "true"},
    "kube-proxy": {},
}
"""DaemonSets: a node without network plugin never becomes ready, and then its group never becomes active. The identity
agent runs in the node's network, so it needs no plugin, and the plugin gets its role from it."""
AFTER_NODES: dict[str, dict[str, Any]] = {
    "coredns": {},
    # 2.x mounts with the identity of the pod that asks (`authenticationSource: pod`), so it gets no role of its own;
    # it must also run on the tainted Neuron nodes.
    "aws-mountpoint-s3-csi-driver": {"node": {"tolerateAllTaints": True}},
    # Container Insights with node and Neuron metrics, and the logs of pods. Naming `kubernetes` alone leaves
    # Application Signals, which would rewrite pods, out:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/install-CloudWatch-Observability-EKS-addon.html
    OBSERVABILITY: {
        "agent": {
            "config": {
                "logs": {
                    "metrics_collected": {
                        "kubernetes": {
                            "enhanced_container_insights": True,
                            "accelerated_compute_metrics": True,
                        }
                    }
                }
            }
        },
        "containerLogs": {"enabled": True},
    },
    "metrics-server": {},
    # Reads the kernel's log for faults of Neuron devices, which the repair of nodes cannot see by itself. It tolerates
    # every taint (https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html).
    "eks-node-monitoring-agent": {},
}
"""These wait for a place to run."""


class ManagedAddons(Construct):
    """The add-ons at their pinned versions, those that call AWS with a role through Pod Identity that exists before
    their first pod does. Not run on AWS."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        settings: Settings,
        cluster: eks.ICluster,
        nodes: SystemNodes,
    ) -> None:
        super().__init__(scope, construct_id)
        self._cluster = cluster
        self._kubernetes = experiment.cluster.kubernetes
        self._roles: dict[str, tuple[str, iam.Role]] = {
            "vpc-cni": ("aws-node", network_plugin_role(self)),
            OBSERVABILITY: ("cloudwatch-agent", observability_role(self, experiment)),
        }
        for name, values in BEFORE_NODES.items():
            nodes.node.add_dependency(self._addon(name, values))
        later = {name: self._addon(name, values) for name, values in AFTER_NODES.items()}
        for addon in later.values():
            addon.node.add_dependency(nodes)
        # The add-on would make these groups itself, and they would keep everything for ever.
        for name in container_insights_log_groups(experiment):
            group = log_group(self, name.rpartition("/")[2], days=settings.log_days, name=name)
            later[OBSERVABILITY].node.add_dependency(group)

    def _addon(self, name: str, values: dict[str, Any]) -> eks.CfnAddon:
        return eks.CfnAddon(
            self,
            name,
            addon_name=name,
            addon_version=addon_version(self._kubernetes, name),
            cluster_name=self._cluster.cluster_name,
            configuration_values=json.dumps(values) if values else None,
            pod_identity_associations=self._associations(name),
            preserve_on_delete=False,
            resolve_conflicts="OVERWRITE",
        )

    def _associations(self, name: str) -> list[eks.CfnAddon.PodIdentityAssociationProperty] | None:
        if name not in self._roles:
            return None
        account, role = self._roles[name]
        return [eks.CfnAddon.PodIdentityAssociationProperty(service_account=account, role_arn=role.role_arn)]
