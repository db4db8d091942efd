"""EKS add-ons, in the order in which a new cluster can install them, and the rights of those that call AWS."""

from __future__ import annotations

import json
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from experiment import Experiment
from experiment.forms import INSTALLABLE
from experiment.naming import container_insights_log_groups
from infra.constructs.acknowledged import EKS_POLICY, NO_RESOURCE, acknowledge
from infra.pins import ADDON_VERSIONS

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
"""These need a node that is ready."""


def pod_identity() -> iam.IPrincipal:
    """Who assumes the roles of pods; it tags its sessions (https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html)."""
    return iam.ServicePrincipal("pods.eks.amazonaws.com").with_session_tags()


def installed(experiment: Experiment) -> set[str]:
    """The add-ons that a deployment installs: into an existing cluster what the experiment needs and the cluster lacks; the
    network plugin, kube-proxy, CoreDNS and the metrics server are its owner's."""
    cluster, every = experiment.cluster, {*BEFORE_NODES, *AFTER_NODES}
    return every & {name for name in INSTALLABLE if cluster.brings(name)} if cluster.existing else every


class ManagedAddons(Construct):
    """The add-ons at their pinned versions, those that call AWS with a role through Pod Identity that exists before
    their first pod does. Not run on AWS."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        cluster: eks.ICluster,
        nodes: Construct | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._cluster_name = cluster.cluster_name
        # Settings of somebody else, who installed the same by another way, stay: the deployment then fails.
        self._on_conflict = "NONE" if experiment.cluster.existing else "OVERWRITE"
        self._versions = ADDON_VERSIONS[experiment.cluster.kubernetes]
        pods, wanted = pod_identity(), installed(experiment)
        self._roles = {}
        if "vpc-cni" in wanted:
            self._roles["vpc-cni"] = ("aws-node", self._network_plugin_role(pods))
        if OBSERVABILITY in wanted:
            role = self._observability_role(pods, experiment)
            self._roles[OBSERVABILITY] = ("cloudwatch-agent", role)
        before = [self._addon(name, values) for name, values in BEFORE_NODES.items() if name in wanted]
        if nodes is not None:
            nodes.node.add_dependency(*before)
        # The add-on would make these groups itself, without a limit on how long they keep logs.
        groups = [
            logs.LogGroup(self, name.rpartition("/")[2], log_group_name=name)
            for name in container_insights_log_groups(experiment)
            if OBSERVABILITY in wanted
        ]
        for name, values in AFTER_NODES.items():
            if name in wanted:
                addon = self._addon(name, values)
                addon.node.add_dependency(
                    *([nodes] if nodes else ()), *(groups if name == OBSERVABILITY else ())
                )

    def _addon(self, name: str, values: dict[str, Any]) -> eks.CfnAddon:
        associations = None
        if name in self._roles:
            account, role = self._roles[name]
            associations = [
                eks.CfnAddon.PodIdentityAssociationProperty(service_account=account, role_arn=role.role_arn)
            ]
        return eks.CfnAddon(
            self,
            name,
            addon_name=name,
            addon_version=self._versions[name],
            cluster_name=self._cluster_name,
            configuration_values=json.dumps(values) if values else None,
            pod_identity_associations=associations,
            preserve_on_delete=False,
            resolve_conflicts=self._on_conflict,
        )

    def _network_plugin_role(self, pods: iam.IPrincipal) -> iam.Role:
        """Network interfaces and addresses of nodes: AWS keeps that list with the plugin's releases."""
        role = iam.Role(
            self,
            "NetworkPluginRole",
            assumed_by=pods,
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKS_CNI_Policy")],
        )
        acknowledge(role, "IAM4", EKS_POLICY, ".*/AmazonEKS_CNI_Policy")
        return role

    def _observability_role(self, pods: iam.IPrincipal, experiment: Experiment) -> iam.Role:
        """The agent and Fluent Bit write to the log groups of this cluster, from which CloudWatch takes the metrics.

        The managed CloudWatchAgentServerPolicy would open every log group, X-Ray and parameters as well.
        """
        here = f"arn:{cdk.Aws.PARTITION}:logs:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        groups = [f"{here}:log-group:{name}" for name in container_insights_log_groups(experiment)]
        statements = [
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
            # These actions have no resource type; the agent adds names of disks and instances to its metrics:
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
        role = iam.Role(
            self,
            "ObservabilityRole",
            assumed_by=pods,
            inline_policies={"write": iam.PolicyDocument(statements=statements)},
        )
        streams = r"Resource::.*:log-group:/aws/containerinsights/.*:log-stream:\*"
        acknowledge(role, "IAM5", "the agent names its streams after nodes and pods", streams)
        acknowledge(role, "IAM5", f"{NO_RESOURCE}; metrics go to one namespace", r"Resource::\*")
        return role
