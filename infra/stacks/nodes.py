"""The Trainium2 nodes, in a stack of their own: the one that costs most and changes most. Also the schedules that end every
rental."""

from __future__ import annotations

import json
import re

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from experiment import Experiment
from experiment.naming import (
    cluster_name,
    daily_schedule,
    neuron_nodegroup,
    off_role_name,
    schedule_group,
)
from infra.constructs.acknowledged import NODE_GROUP_ID, acknowledge
from infra.constructs.addons import ManagedAddons
from infra.constructs.neuron_nodes import NeuronNodes
from infra.constructs.node_launch import add_system_nodes
from infra.off_schedules import off_expressions
from infra.stacks.experiment_stack import ExperimentStack

TARGET = "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"


class TimeToLive(Construct):
    """Schedules that set the group of Neuron nodes to zero: every day at the hour of the experiment or, of a capacity block,
    before it ends, and those that `run` and `scale` add, copies of the first. What a schedule could not do after its last
    attempt goes to a queue and raises an alarm (`infra/monitoring/alarms.py`). An
    idle trn2.48xlarge costs about $36 an hour; nothing else here can be forgotten at that price. Not run on AWS.
    """

    def __init__(self, scope: Construct, construct_id: str, *, experiment: Experiment) -> None:
        super().__init__(scope, construct_id)
        self._experiment = experiment
        self._group = scheduler.CfnScheduleGroup(self, "Group", name=schedule_group(experiment))
        self._failures = sqs.Queue(
            self,
            "Failures",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=cdk.Duration.days(14),
        )
        acknowledge(
            self._failures,
            "SQS3",
            "it is the dead-letter queue, of schedules, which the rule does not know",
        )
        self._target = self._switch_off()
        first, again = off_expressions(experiment)
        self._schedule("Daily", first, name=daily_schedule(experiment))
        self._schedule("DailyAgain", again)

    def _schedule(self, construct_id: str, expression: str, *, name: str | None = None) -> None:
        schedule = scheduler.CfnSchedule(
            self,
            construct_id,
            name=name,
            group_name=schedule_group(self._experiment),
            schedule_expression=expression,
            schedule_expression_timezone="UTC",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=self._target,
        )
        schedule.add_resource_dependency(self._group)

    def _switch_off(self) -> scheduler.CfnSchedule.TargetProperty:
        """EKS is told to have no nodes, in the spelling of Scheduler's universal targets, which capitalize the API's names.

        https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
        """
        told = {
            "ClusterName": cluster_name(self._experiment),
            "NodegroupName": neuron_nodegroup(self._experiment),
            "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
        }
        return scheduler.CfnSchedule.TargetProperty(
            arn=TARGET,
            role_arn=self._role().role_arn,
            input=json.dumps(told, sort_keys=True),
            dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=self._failures.queue_arn),
            retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                maximum_retry_attempts=185, maximum_event_age_in_seconds=7200
            ),
        )

    def _role(self) -> iam.Role:
        experiment, account = self._experiment, cdk.Aws.ACCOUNT_ID
        here = f"{cdk.Aws.REGION}:{account}"
        role = iam.Role(
            self,
            "Off",
            role_name=off_role_name(experiment),
            description=f"sets the Neuron nodes of {experiment.name} to zero",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com",
                # https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
                conditions={
                    "StringEquals": {
                        "aws:SourceAccount": account,
                        "aws:SourceArn": f"arn:aws:scheduler:{here}:schedule-group/{schedule_group(experiment)}",
                    }
                },
            ),
        )
        # The last part is an id that EKS assigns.
        group = f"nodegroup/{cluster_name(experiment)}/{neuron_nodegroup(experiment)}/*"
        for sid, action, resource in (
            ("EmptyTheGroup", "eks:UpdateNodegroupConfig", f"arn:aws:eks:{here}:{group}"),
            ("KeepWhatFailed", "sqs:SendMessage", self._failures.queue_arn),
        ):
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=[action], resources=[resource]))
        acknowledge(role, "IAM5", NODE_GROUP_ID, rf"Resource::.*:{re.escape(group)[:-2]}\*")
        return role


class NodesStack(ExperimentStack):
    """The group of Neuron nodes, and what empties it; in an existing cluster also the system nodes and the add-ons that it
    lacks."""

    def __init__(
        self, scope: Construct, *, experiment: Experiment, cluster: eks.ICluster | None, made: ec2.IVpc | None
    ) -> None:
        super().__init__(scope, "nodes", experiment=experiment, description="Trainium2 nodes")
        vpc = self.network(experiment, made)
        joined, cluster = cluster is None, self.cluster_of(experiment, cluster, vpc)
        if joined:
            brings = experiment.cluster.brings("system-nodes")
            system = add_system_nodes(self, experiment=experiment, cluster=cluster) if brings else None
            ManagedAddons(self, "Addons", experiment=experiment, cluster=cluster, nodes=system)
        end = TimeToLive(self, "TimeToLive", experiment=experiment)
        nodes = NeuronNodes(self, "NeuronNodes", experiment=experiment, cluster=cluster, vpc=vpc)
        # A group that waits for its first node may take hours to be made, and what ends it is there before.
        nodes.group.node.add_dependency(end)
