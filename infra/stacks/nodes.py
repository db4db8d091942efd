"""How nodes start, and the Trainium2 nodes in a stack of their own: the one that costs most and changes most. Also the schedules that
end every rental."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from experiment import Experiment, naming
from experiment.catalogue.node_images import images_of
from experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from experiment.cost import NEURON_VOLUME_GIB, SYSTEM_NODES, SYSTEM_VOLUME_GIB
from infra.deployment_file import DeploymentSettings
from infra.off_schedules import off_expressions
from infra.stacks.experiment_stack import (
    EKS_POLICY,
    NODE_GROUP_ID,
    ExperimentStack,
    acknowledge,
    allow,
    logical_id,
)
from infra.stacks.software import ManagedAddons

POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
"""What EKS asks of a node role (https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html), without the
network plugin's rights: it has a role of its own. Pods get their rights through Pod Identity, never from here."""
OF_NETWORK_PLUGIN = "AmazonEKS_CNI_Policy"
"""For nodes of an existing cluster, whose network plugin may have no role but the node's: without these rights a node there
never becomes ready."""
TARGET = "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"
_Template = ec2.CfnLaunchTemplate
_VOLUME_WITHOUT_NVME = {"gib": 500, "iops": 8000, "mib_s": 1000}
"""Images with the Neuron SDK unpack to tens of GiB, and compilation writes beside them; an estimate. A node bills from its start, and
unpacking the image waits for the disk where there is no NVMe."""
_CAPACITY_TYPES = {"capacity-block": eks.CapacityType.CAPACITY_BLOCK, "spot": eks.CapacityType.SPOT}
"""A reservation is used by on-demand instances; a block is a kind of its own
(https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html). Spot nodes are replaced on EC2's advice too, before it
takes them: EKS turns Capacity Rebalancing on, and drains the old node when the new one is ready or when the notice of two minutes
comes (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html#managed-node-group-capacity-types)."""
_BOUNDARY = "==part=="
_NODE_CONFIG = """\
---
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""
"""The local NVMe disks become one, and kubelet and containerd live on it: images, logs and every emptyDir
(https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/)."""
_LOGICAL_CORES = """\
#!/usr/bin/env bash
set -euo pipefail
mkdir -p /opt/aws/neuron
echo NEURON_LOGICAL_NC_CONFIG={size} > /opt/aws/neuron/logical_nc_config
"""
"""How many physical cores the device plugin counts as one: without claims that is a fact of the node
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/prerequisites.html)."""


def metadata_options() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """IMDSv2 only, and one hop: the node itself and pods in its network reach it, other pods do not.

    With two hops every pod could take the node's credentials. Nothing here needs that: pods have Pod Identity, the
    Neuron DRA driver and the Pod Identity agent run in the node's network, and Mountpoint, which would ask for the
    region, has it in the volumes' mount options. That vLLM on Neuron never asks is not run on AWS.
    """
    return _Template.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
    )


def root_volume(
    *, gib: int, iops: int | None = None, mib_s: int | None = None
) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """Encrypted gp3 that goes with its node; `/dev/xvda` is the root device of Amazon Linux 2023."""
    return _Template.BlockDeviceMappingProperty(
        device_name="/dev/xvda",
        ebs=_Template.EbsProperty(
            volume_size=gib,
            volume_type="gp3",
            iops=iops,
            throughput=mib_s,
            encrypted=True,
            delete_on_termination=True,
        ),
    )


def _node_group(
    scope: Construct,
    experiment: Experiment,
    settings: DeploymentSettings,
    *,
    name: str,
    volume: ec2.CfnLaunchTemplate.BlockDeviceMappingProperty,
    launch: dict[str, Any],
    **more: Any,
) -> eks.Nodegroup:
    """A managed group with its launch template and its role; `launch` is what this group adds to the template.

    Instances and disks do not inherit the tags of the stack; without tags of their own a bill could not be assigned.
    """
    named = {**settings.tags, "Name": name, "experiment": experiment.name}
    tags = [cdk.CfnTag(key=key, value=value) for key, value in named.items()]
    specifications = [
        _Template.TagSpecificationProperty(resource_type=kind, tags=tags) for kind in ("instance", "volume")
    ]
    template = _Template(
        scope,
        "Template",
        launch_template_data=_Template.LaunchTemplateDataProperty(
            metadata_options=metadata_options(),
            block_device_mappings=[volume],
            tag_specifications=specifications,
            **launch,
        ),
    )
    policies = (*POLICIES, *([OF_NETWORK_PLUGIN] if experiment.cluster.existing else ()))
    role = iam.Role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(one) for one in policies],
    )
    acknowledge(role, "IAM4", EKS_POLICY, *(f".*/{one}" for one in policies))
    group = eks.Nodegroup(
        scope,
        "Group",
        nodegroup_name=name,
        launch_template_spec=eks.LaunchTemplateSpec(
            id=template.ref, version=template.attr_latest_version_number
        ),
        node_role=role,
        **more,
    )
    # Beside its release: by the release alone EKS would refuse to follow the cluster to the next version
    # (https://github.com/eksctl-io/eksctl/issues/7976).
    _resource(group).version = experiment.cluster.kubernetes
    return group


def _resource(group: eks.Nodegroup) -> eks.CfnNodegroup:
    resource = group.node.default_child
    assert isinstance(resource, eks.CfnNodegroup)
    return resource


def add_system_nodes(
    scope: Construct, *, experiment: Experiment, settings: DeploymentSettings, cluster: eks.ICluster
) -> Construct:
    """A managed node group over all zones, for everything but the models; `cluster` places it into its private subnets.

    4 vCPU and 16 GiB carry CoreDNS, the add-ons' agents and controllers, the fetch Job and the benchmark's pod; on an m7i.large the
    agents alone leave the benchmark no room.
    """
    nodes = Construct(scope, "SystemNodes")
    _node_group(
        nodes,
        experiment,
        settings,
        name=naming.system_nodegroup(experiment),
        volume=root_volume(gib=SYSTEM_VOLUME_GIB),
        launch={},
        cluster=cluster,
        release_version=images_of(experiment.cluster.kubernetes)[0].release,
        ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
        instance_types=[ec2.InstanceType(SYSTEM_INSTANCE_TYPE)],
        min_size=SYSTEM_NODES,
        desired_size=SYSTEM_NODES,
        max_size=SYSTEM_NODES + 1,
        subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
        labels={naming.NODE_ROLE_LABEL: naming.role_label(experiment, "system")},
    )
    return nodes


class NeuronNodes(Construct):
    """A managed node group of the experiment's instance type in one zone, empty unless the experiment asks for nodes.

    The instance type is in the launch template, not in the group: aws_eks_v2 2.275 takes trn2 for no accelerator
    and refuses the Neuron image with it, and a capacity block wants it there as well. Not run on AWS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        settings: DeploymentSettings,
        cluster: eks.ICluster,
        vpc: ec2.IVpc,
    ) -> None:
        super().__init__(scope, construct_id)
        wanted, image, instance = experiment.cluster.nodes, experiment.node_image, experiment.instance
        assert image is not None, "experiments without Neuron devices are not deployed"
        zone = experiment.cluster.trn2_zone
        taint = eks.TaintSpec(key=naming.NEURON_TAINT_KEY, value="true", effect=eks.TaintEffect.NO_SCHEDULE)
        in_zone = [subnet for subnet in vpc.private_subnets if subnet.availability_zone == zone]
        self.group = _node_group(
            self,
            experiment,
            settings,
            name=naming.neuron_nodegroup(experiment),
            volume=root_volume(
                **{"gib": NEURON_VOLUME_GIB} if instance.scratch_gib > 0 else _VOLUME_WITHOUT_NVME
            ),
            launch={
                "instance_type": instance.name,
                "user_data": _user_data(experiment),
                **self._network(instance.efa_attached, cluster, vpc),
                **self._purchase(experiment),
            },
            cluster=cluster,
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NEURON,
            release_version=image.release,
            capacity_type=_CAPACITY_TYPES.get(experiment.cluster.capacity.kind, eks.CapacityType.ON_DEMAND),
            min_size=0,
            desired_size=wanted,
            max_size=max(wanted, experiment.cluster.max_nodes),
            # One zone: reservations and EFA live in one.
            subnets=ec2.SubnetSelection(subnets=in_zone),
            labels={
                naming.NODE_ROLE_LABEL: naming.role_label(experiment, "neuron"),
                **naming.driver_label(experiment.baseline.serving.allocation),
            },
            taints=[taint],
            # EKS replaces a node ten minutes after the monitoring agent reports a hardware fault of a Neuron device, and
            # after half an hour without a ready kubelet; else it would bill on. In groups of up to five nodes no share of
            # unhealthy ones stops this (https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html).
            enable_node_auto_repair=True,
        )
        # A changed template replaces running nodes: the old one goes first, because EC2 seldom has a second, and a
        # reservation may hold one only.
        _resource(self.group).update_config = eks.CfnNodegroup.UpdateConfigProperty(
            max_unavailable=1, update_strategy="MINIMAL"
        )

    def _network(self, efa_interfaces: int, cluster: eks.ICluster, vpc: ec2.IVpc) -> dict[str, Any]:
        """One EFA interface a network card, of which the first carries IP as well; or the cluster's group alone where no
        EFA is attached. EC2 takes the groups in one of the two places.

        The Neuron DRA driver publishes the groups of connected devices, from which the arms are placed, on instances
        with EFA only (Neuron DRA documentation). EFA passes only between members of a group that allows all traffic to
        and from itself, by name (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
        """
        groups = [cluster.cluster_security_group_id]
        if efa_interfaces == 0:
            return {"security_group_ids": groups}
        described = "EFA traffic between Neuron nodes"
        efa = ec2.SecurityGroup(self, "Efa", vpc=vpc, description=described, allow_all_outbound=False)
        efa.add_ingress_rule(efa, ec2.Port.all_traffic(), "EFA from the group itself")
        efa.add_egress_rule(efa, ec2.Port.all_traffic(), "EFA to the group itself")
        # CDK names a rule after the path of its group, in which the stack was once called `nodes`.
        stack = self.node.scopes.index(cdk.Stack.of(self))
        outer = [scope.node.id for scope in self.node.scopes[1:stack]]
        group = logical_id(*outer, "nodes", self.node.id, efa.node.id)
        for kind, way in ((ec2.CfnSecurityGroupIngress, "from"), (ec2.CfnSecurityGroupEgress, "to")):
            (rule,) = (one for one in efa.node.children if isinstance(one, kind))
            rule.override_logical_id(logical_id(self.node.id, efa.node.id, f"{way} {group}:ALL TRAFFIC"))
        groups.append(efa.security_group_id)
        return {
            "network_interfaces": [
                _Template.NetworkInterfaceProperty(
                    network_card_index=card,
                    device_index=0 if card == 0 else 1,
                    interface_type="efa" if card == 0 else "efa-only",
                    groups=groups,
                    delete_on_termination=True,
                )
                for card in range(efa_interfaces)
            ]
        }

    def _purchase(self, experiment: Experiment) -> dict[str, Any]:
        """What the launch template adds for this capacity. Nothing for spot: the group's type says it, and EKS refuses market options
        in the template, so there is no maximum price either (https://github.com/aws/aws-cdk/issues/24730)."""
        options: dict[str, Any] = {}
        capacity = experiment.cluster.capacity
        if capacity.kind == "capacity-block":
            block = _Template.InstanceMarketOptionsProperty(market_type="capacity-block")
            options["instance_market_options"] = block
        if capacity.reservation_id is not None:
            target = _Template.CapacityReservationTargetProperty(
                capacity_reservation_id=capacity.reservation_id
            )
            options["capacity_reservation_specification"] = (
                _Template.CapacityReservationSpecificationProperty(capacity_reservation_target=target)
            )
        # Several on-demand nodes are faster close together where EFA connects them. A capacity block is close
        # already, and a reservation that was not made inside the same placement group could not be used from it
        # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html). Spot nodes are seldom enough without the
        # condition, and no arm spans two of them.
        joined = experiment.cluster.max_nodes > 1 and experiment.instance.efa_attached > 0
        if joined and capacity.kind == "on-demand":
            group = ec2.CfnPlacementGroup(self, "Placement", strategy="cluster")
            options["placement"] = _Template.PlacementProperty(group_name=group.ref)
        return options


def _user_data(experiment: Experiment) -> str | None:
    """As MIME for Amazon Linux 2023 on EKS, which merges it with its own part
    (https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html)."""
    serving = experiment.baseline.serving
    parts = []
    if experiment.instance.scratch_gib > 0:
        parts.append(("application/node.eks.aws", _NODE_CONFIG))
    if serving.allocation == "device-plugin":
        script = _LOGICAL_CORES.format(size=serving.logical_nc_config)
        parts.append(('text/x-shellscript; charset="us-ascii"', script))
    if not parts:
        return None
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n'
    bodies = "".join(f"\n--{_BOUNDARY}\nContent-Type: {kind}\n\n{body}" for kind, body in parts)
    return base64.b64encode(f"{head}{bodies}\n--{_BOUNDARY}--\n".encode()).decode()


class TimeToLive(Construct):
    """Schedules that set the group of Neuron nodes to zero: every day at the hour of the experiment or, of a capacity block,
    before it ends, and those that `run` and `scale` add, copies of the first. What a schedule could not do after its last
    attempt goes to a queue and raises an alarm (`infra/monitoring/alarms.py`). An
    idle trn2.48xlarge costs about $36 per hour; nothing else here can be forgotten at that price. Not run on AWS.
    """

    def __init__(self, scope: Construct, construct_id: str, *, experiment: Experiment) -> None:
        super().__init__(scope, construct_id)
        group = scheduler.CfnScheduleGroup(self, "Group", name=naming.schedule_group(experiment))
        failures = sqs.Queue(
            self,
            "Failures",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=cdk.Duration.days(14),
        )
        queue = "it is the dead-letter queue, of schedules, which the rule does not know"
        acknowledge(failures, "SQS3", queue)
        # In the spelling of Scheduler's universal targets, which capitalize the API's names
        # (https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html).
        no_nodes = {
            "ClusterName": naming.cluster_name(experiment),
            "NodegroupName": naming.neuron_nodegroup(experiment),
            "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
        }
        target = scheduler.CfnSchedule.TargetProperty(
            arn=TARGET,
            role_arn=self._role(experiment, failures).role_arn,
            input=json.dumps(no_nodes, sort_keys=True),
            dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=failures.queue_arn),
            retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                maximum_retry_attempts=185, maximum_event_age_in_seconds=7200
            ),
        )
        first, again = off_expressions(experiment)
        for construct_id, expression, name in (
            ("Daily", first, naming.daily_schedule(experiment)),
            ("DailyAgain", again, None),
        ):
            schedule = scheduler.CfnSchedule(
                self,
                construct_id,
                name=name,
                group_name=naming.schedule_group(experiment),
                schedule_expression=expression,
                schedule_expression_timezone="UTC",
                flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
                target=target,
            )
            schedule.add_resource_dependency(group)

    def _role(self, experiment: Experiment, failures: sqs.Queue) -> iam.Role:
        account = cdk.Aws.ACCOUNT_ID
        here = f"{cdk.Aws.REGION}:{account}"
        # https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
        own = {
            "aws:SourceAccount": account,
            "aws:SourceArn": f"arn:aws:scheduler:{here}:schedule-group/{naming.schedule_group(experiment)}",
        }
        role = iam.Role(
            self,
            "Off",
            role_name=naming.off_role_name(experiment),
            description=f"sets the Neuron nodes of {experiment.name} to zero",
            assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com", conditions={"StringEquals": own}),
        )
        # The last part is an id that EKS assigns.
        group = f"nodegroup/{naming.cluster_name(experiment)}/{naming.neuron_nodegroup(experiment)}/*"
        for sid, action, resource in (
            ("EmptyTheGroup", "eks:UpdateNodegroupConfig", f"arn:aws:eks:{here}:{group}"),
            ("KeepWhatFailed", "sqs:SendMessage", failures.queue_arn),
        ):
            role.add_to_policy(allow(action, resource, sid=sid))
        acknowledge(role, "IAM5", NODE_GROUP_ID, rf"Resource::.*:{re.escape(group)[:-2]}\*")
        return role


class NodesStack(ExperimentStack):
    """The group of Neuron nodes, and what empties it; in an existing cluster also the system nodes and the add-ons that it
    lacks."""

    def __init__(
        self,
        scope: Construct,
        *,
        experiment: Experiment,
        settings: DeploymentSettings,
        cluster: eks.ICluster | None,
        made: ec2.IVpc | None,
    ) -> None:
        super().__init__(scope, "nodes", "Trainium2 nodes", experiment=experiment, settings=settings)
        vpc = self.network(made)
        joined, cluster = cluster is None, self.cluster_of(cluster, vpc)
        common: dict[str, Any] = {"experiment": experiment, "settings": settings, "cluster": cluster}
        if joined:
            brings = experiment.cluster.brings("system-nodes")
            system = add_system_nodes(self, **common) if brings else None
            ManagedAddons(self, "Addons", experiment=experiment, cluster=cluster, nodes=system)
        end = TimeToLive(self, "TimeToLive", experiment=experiment)
        nodes = NeuronNodes(self, "NeuronNodes", **common, vpc=vpc)
        # A group that waits for its first node may take hours to be made, and what ends it is there before.
        nodes.group.node.add_dependency(end)
