"""The schedules that turn the Trainium2 nodes off."""

from __future__ import annotations

import json

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.scale_to_zero_schedules import scale_to_zero_expressions
from infra.stacks.experiment_stack import allow
from trnspec.experiment import Experiment, naming

TARGET = "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"


class TimeToLive(Construct):
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
        target = scheduler.CfnSchedule.TargetProperty(
            arn=TARGET,
            role_arn=self._role(experiment, failures).role_arn,
            input=json.dumps(no_nodes, sort_keys=True),
            dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=failures.queue_arn),
            retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                maximum_retry_attempts=185, maximum_event_age_in_seconds=7200
            ),
        )
        first, again = scale_to_zero_expressions(experiment)
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
            assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com", conditions={"StringEquals": own}),  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
        )
        # The last part is an id that EKS assigns.
        group = f"nodegroup/{naming.cluster_name(experiment)}/{naming.neuron_nodegroup(experiment)}/*"
        for sid, action, resource in (
            ("EmptyTheGroup", "eks:UpdateNodegroupConfig", f"arn:aws:eks:{here}:{group}"),
            ("KeepWhatFailed", "sqs:SendMessage", failures.queue_arn),
        ):
            role.add_to_policy(allow(action, resource, sid=sid))
        return role
