"""Software of the cluster: EKS add-ons, in the order in which a new cluster can install them, with the permissions of those that
call AWS; and the Helm chart of AWS Neuron."""

from __future__ import annotations

import copy
import json
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.pins import ADDON_VERSIONS, NEURON_CHART, SCHEDULER_TAGS
from infra.stacks.experiment_stack import StackOfCluster, allow, pod_identity
from trnspec.experiment import Experiment, naming

CNI_POLICY = "AmazonEKS_CNI_Policy"
KUBECTL_TIMEOUT_S = 1200
"""How long CloudFormation waits for kubectl or Helm; CDK's functions end after 15 minutes. Its own limit is an hour
(https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-cloudformation-customresource.html)."""
OBSERVABILITY = "amazon-cloudwatch-observability"
BEFORE_NODES: dict[str, dict[str, Any]] = {
    "eks-pod-identity-agent": {},
    # https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html
    "vpc-cni": {"enableNetworkPolicy": "true"},
    "kube-proxy": {},
}
"""DaemonSets: a node without network plugin never becomes ready, and then its group never becomes active. The identity
agent runs in the node's network, so it needs no plugin, and the plugin gets its role from it."""
_INSIGHTS = {"enhanced_container_insights": True, "accelerated_compute_metrics": True}
AFTER_NODES: dict[str, dict[str, Any]] = {
    "coredns": {},
    # 2.x mounts with the identity of the pod that asks (`authenticationSource: pod`), so it gets no role of its own;
    # it must also run on the tainted Neuron nodes.
    "aws-mountpoint-s3-csi-driver": {"node": {"tolerateAllTaints": True}},
    # Container Insights with node and Neuron metrics, and the logs of pods. Naming `kubernetes` alone leaves
    # Application Signals, which would rewrite pods, out:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/install-CloudWatch-Observability-EKS-addon.html
    OBSERVABILITY: {
        "agent": {"config": {"logs": {"metrics_collected": {"kubernetes": _INSIGHTS}}}},
        "containerLogs": {"enabled": True},
    },
    "metrics-server": {},
    # Reads the kernel's log for faults of Neuron devices, which the repair of nodes cannot see by itself. It tolerates
    # every taint (https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html).
    "eks-node-monitoring-agent": {},
}
"""These need a node that is ready."""


class ManagedAddons(Construct):
    """The add-ons at their pinned versions. Those that call AWS have a role through Pod Identity that exists before their first
    pod. Not verified on AWS."""

    def __init__(self, control: StackOfCluster, construct_id: str, *, nodes: Construct) -> None:
        super().__init__(control, construct_id)
        experiment = control.experiment
        self._cluster_name = control.cluster.cluster_name
        self._versions = ADDON_VERSIONS[experiment.cluster.kubernetes]
        self._roles = {
            "vpc-cni": ("aws-node", self._network_plugin_role()),
            OBSERVABILITY: ("cloudwatch-agent", self._observability_role(experiment)),
        }
        nodes.node.add_dependency(*(self._addon(name, values) for name, values in BEFORE_NODES.items()))
        # The add-on would make these groups itself, without a limit on how long they keep logs.
        groups = [
            logs.LogGroup(self, name.rpartition("/")[2], log_group_name=name)
            for name in naming.container_insights_log_groups(experiment)
        ]
        for name, values in AFTER_NODES.items():
            addon = self._addon(name, values)
            addon.node.add_dependency(nodes, *(groups if name == OBSERVABILITY else ()))

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
            resolve_conflicts="OVERWRITE",
        )

    def _network_plugin_role(self) -> iam.Role:
        """Return the role that manages network interfaces of nodes: AWS keeps the list of its actions with the plugin's releases."""
        policy = iam.ManagedPolicy.from_aws_managed_policy_name(CNI_POLICY)
        return iam.Role(self, "NetworkPluginRole", assumed_by=pod_identity(), managed_policies=[policy])

    def _observability_role(self, experiment: Experiment) -> iam.Role:
        """Return the role with which agent and Fluent Bit write to the log groups of this cluster, from which CloudWatch takes the metrics.

        The managed CloudWatchAgentServerPolicy would open every log group, X-Ray and parameters as well.
        """
        here = f"arn:{cdk.Aws.PARTITION}:logs:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        groups = [f"{here}:log-group:{name}" for name in naming.container_insights_log_groups(experiment)]
        written = [arn for group in groups for arn in (group, f"{group}:log-stream:*")]
        logging = "logs:CreateLogGroup CreateLogStream DescribeLogStreams PutLogEvents"
        own = {"StringEquals": {"cloudwatch:namespace": "ContainerInsights"}}
        statements = [
            allow(logging, *written, sid="WriteLogs"),
            # These actions have no resource type; the agent adds names of disks and instances to its metrics:
            # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
            allow("ec2:DescribeTags DescribeVolumes", "*", sid="NameWhatIsMeasured"),
            allow("cloudwatch:PutMetricData", "*", sid="PublishMetrics", where=own),
        ]
        policies = {"write": iam.PolicyDocument(statements=statements)}
        return iam.Role(self, "ObservabilityRole", assumed_by=pod_identity(), inline_policies=policies)


_NEURON_VALUES: dict[str, dict[str, Any]] = {
    "dra": {
        "devicePlugin": {"enabled": False},
        "scheduler": {"enabled": False},
        "npd": {"enabled": False},
        "draDriver": {"enabled": True, "nodeSelector": naming.driver_label("dra")},
    },
    "device-plugin": {
        "devicePlugin": {"enabled": True, "nodeSelector": naming.driver_label("device-plugin")},
        "scheduler": {"enabled": True},
        "npd": {"enabled": False},
        "draDriver": {"enabled": False},
    },
}
"""Values for one allocation of devices at a time: both on one node would allocate the same device twice, and the chart
refuses the DRA driver together with the device plugin, which is on by default, or with the scheduler extension (README of
aws-neuron/neuron-helm-charts). The extension places pods that take fewer devices than their node has on connected ones; it runs as
a second scheduler, which those pods alone name (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/infrastructure/scheduler.html).
The node problem detector would need a role of its own, and replaces nodes by itself: off; so is the chart's operator of UltraServers,
by its default. The affinity that the chart gives to driver and plugin admits all nodes with Neuron devices, those of other teams
too: the selectors leave them out. The names of all switches were compared with the values of chart 1.10.0 (`tests/data/neuron-chart/`)."""


def neuron_values(allocation: str, *, kubernetes: str) -> dict[str, Any]:
    """Return the values of the chart, for a cluster of this version. Its second scheduler would be kube-scheduler 1.31 by the chart's default, which
    speaks older APIs than such a cluster may still have; it has the cluster's version instead, and runs on system nodes."""
    values = copy.deepcopy(_NEURON_VALUES[allocation])
    if values["scheduler"]["enabled"]:
        place = {"nodeSelector": {naming.NODE_ROLE_LABEL: "system"}}
        image = {"image": {"tag": SCHEDULER_TAGS[kubernetes]}}
        values["scheduler"] |= {**place, "customScheduler": {**place, **image}}
    return values


def install_neuron_software(scope: Construct, *, experiment: Experiment, cluster: eks.ICluster) -> Construct:
    """Install the Neuron Helm chart: with the DRA driver, which has the device class that the claims name, or with the
    device plugin and the scheduler extension.

    The templates of this version could not be read. Not verified on AWS.
    """
    software = Construct(scope, "Neuron")
    chart = eks.HelmChart(
        software,
        "Chart",
        cluster=cluster,
        # The provider pulls an OCI chart by its repository alone, but requires a name as well.
        **NEURON_CHART._asdict(),
        namespace="kube-system",
        values=neuron_values(
            experiment.baseline.serving.allocation,
            kubernetes=experiment.cluster.kubernetes,
        ),
    )
    resource = chart.node.find_child("Resource").node.default_child
    assert isinstance(resource, cdk.CfnResource)
    resource.add_property_override("ServiceTimeout", str(KUBECTL_TIMEOUT_S))
    return software
