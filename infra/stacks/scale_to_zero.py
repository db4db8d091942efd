"""The schedules that turn the Trainium2 nodes off."""

from __future__ import annotations

import json

import aws_cdk as cdk
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.scale_to_zero_schedules import scale_to_zero_expressions
from infra.stacks.experiment_stack import allow, service_role
from trnspec.experiment import Experiment, naming

_TARGET = "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"


class ScaleToZero(Construct):
    """Schedules that set the group of Neuron nodes to zero: every day at the hour of the experiment or, for a capacity block,
    before it ends. `run` and `nodes` add copies of this schedule. If a schedule still fails at its last attempt, it goes to a
    queue and raises an alarm (`infra/monitoring/alarms.py`). An idle trn2.48xlarge costs about $36 per hour, more than anything
    else in a deployment. Not verified on AWS.
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
        # In the spelling of Scheduler's universal targets, which capitalize the API's names
        # (https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html).
        no_nodes = {
            "ClusterName": naming.cluster_name(experiment),
            "NodegroupName": naming.neuron_nodegroup(experiment),
            "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
        }
        schedule_type = scheduler.CfnSchedule
        target = schedule_type.TargetProperty(
            arn=_TARGET,
            role_arn=self._role_arn(experiment, failures),
            input=json.dumps(no_nodes, sort_keys=True),
            dead_letter_config=schedule_type.DeadLetterConfigProperty(arn=failures.queue_arn),
            retry_policy=schedule_type.RetryPolicyProperty(
                maximum_retry_attempts=185, maximum_event_age_in_seconds=7200
            ),
        )
        names = {"Daily": naming.daily_schedule(experiment), "DailyAgain": None}
        for id_, expression in zip(names, scale_to_zero_expressions(experiment), strict=True):
            schedule = schedule_type(
                self,
                id_,
                name=names[id_],
                group_name=naming.schedule_group(experiment),
                schedule_expression=expression,
                schedule_expression_timezone="UTC",
                flexible_time_window=schedule_type.FlexibleTimeWindowProperty(mode="OFF"),
                target=target,
            )
            schedule.add_resource_dependency(group)

    def _role_arn(self, experiment: Experiment, failures: sqs.Queue) -> str:
        here = f"{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        # https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
        own = {
            "aws:SourceAccount": cdk.Aws.ACCOUNT_ID,
            "aws:SourceArn": f"arn:aws:scheduler:{here}:schedule-group/{naming.schedule_group(experiment)}",
        }
        role = service_role(
            self,
            "Off",
            "scheduler",
            role_name=naming.off_role_name(experiment),
            description=f"sets the Neuron nodes of {experiment.name} to zero",
            conditions={"StringEquals": own},
        )
        # The last part is an id that EKS assigns.
        group = f"nodegroup/{naming.cluster_name(experiment)}/{naming.neuron_nodegroup(experiment)}/*"
        for sid, action, resource in (
            ("EmptyTheGroup", "eks:UpdateNodegroupConfig", f"arn:aws:eks:{here}:{group}"),
            ("KeepWhatFailed", "sqs:SendMessage", failures.queue_arn),
        ):
            role.add_to_policy(allow(action, resource, sid=sid))
        return role.role_arn
