"""One account's share of the pipeline: the experiment's stacks as in any deployment, and one of the delivery: the smoke test inside
its VPC, and who may start that and the run.

What talks to a cluster runs inside its VPC, in a project of the stage's own account that the pipeline only starts and waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.deployment import add_stacks
from infra.pipeline.pipeline_file import (
    AROUND_MINUTES,
    PipelineConfiguration,
    StageConfiguration,
    delivery_role_name,
)
from infra.stacks.cluster import ClusterStack
from infra.stacks.experiment_stack import allow, configure_log_groups
from infra.stacks.runner import BuildsStack
from trnspec.experiment import naming

DELIVER = ".venv/bin/python -m trnspec.operations.delivery"
NOTHING_MEASURED = "[ ! -e results/run/summary.json ]"
"""Succeeds where the build left no answer, as that of an operator with `--until compile` does; then the gate has nothing to judge."""


@dataclass(frozen=True, kw_only=True)
class ClusterStep:
    name: str
    commands: tuple[str, ...]
    minutes: int
    """How long the pipeline waits for it."""
    arguments: str = ""
    """Those of `./trnspec run`, for the step that may set the Trn2 group to more than 0; `commands` come after the run."""

    @property
    def waiting_minutes(self) -> int:
        """The timeout of the pipeline's build that starts this one and waits for it."""
        return self.minutes + AROUND_MINUTES


def dev_steps(stage: StageConfiguration) -> tuple[ClusterStep, ...]:
    """Return the steps after every deployment; they need no Trn2 node."""
    smoke = f"{DELIVER} smoke {stage.settings.experiment}"
    return (ClusterStep(name="smoke", commands=(smoke,), minutes=30),)


def prod_steps(configuration: PipelineConfiguration) -> tuple[ClusterStep, ...]:
    """Return the steps after the approval and the deployment, in order; the gate reads the earlier run from the results bucket."""
    stage, settings = configuration.prod, configuration.settings
    if settings.run == "never":
        return dev_steps(stage)
    ends = " --until compile" if settings.run == "compile" else ""
    arguments = f"{stage.settings.experiment} --hours {settings.hours}{ends}"
    commands = []
    if settings.baseline_run:
        results = f"s3://{naming.bucket(stage.experiment, 'results', stage.settings.account)}/runs"
        commands = [
            f"{NOTHING_MEASURED} || aws s3 cp --only-show-errors --recursive {results}/{settings.baseline_run} results/baseline",
            f"{NOTHING_MEASURED} || .venv/bin/python -m trnspec.benchmark gate results/run --baseline results/baseline",
        ]
    minutes = (settings.hours + 1) * 60
    run = ClusterStep(name="run", commands=tuple(commands), minutes=minutes, arguments=arguments)
    return (*dev_steps(stage), run)


class DeliveredStage(cdk.Stage):
    """All stacks of one stage. Every role has the permissions boundary, because the execution policy requires it. Where no step starts
    Trn2 nodes, nothing is there that could."""

    def __init__(
        self,
        scope: Construct,
        *,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
    ) -> None:
        super().__init__(
            scope,
            stage.name,
            env=cdk.Environment(account=stage.settings.account, region=stage.experiment.cluster.region),
            permissions_boundary=cdk.PermissionsBoundary.from_name(configuration.settings.boundary),
        )
        runs = next(
            ({"arguments": step.arguments, "afterwards": step.commands} for step in steps if step.arguments),
            None,
        )
        control = add_stacks(self, stage, runs=runs)
        delivery = DeliveryStack(self, configuration=configuration, stage=stage, steps=steps, control=control)
        configure_log_groups(delivery, stage.settings)


class DeliveryStack(BuildsStack):
    """The projects of the steps that start no node, and the role with which the pipeline's account starts all of them."""

    def __init__(
        self,
        scope: Construct,
        *,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
        control: ClusterStack,
    ) -> None:
        name = delivery_role_name(stage.experiment)
        super().__init__(scope, "delivery", "steps of the delivery", control, role_name=name)
        # What the smoke step asks of pins, zone and quotas.
        self._allow("SeeVersions", "eks:DescribeAddonVersions DescribeClusterVersions", "*")
        self._allow("SeeOffers", "ec2:DescribeImages DescribeInstanceTypeOfferings", "*")
        self._allow("SeeQuotas", "servicequotas:GetServiceQuota", self._arn("servicequotas", "ec2", "*"))
        for step in steps:
            if not step.arguments:
                self.project(step.name, *step.commands, minutes=step.minutes)
        # Trust the account with a condition, because a principal that does not exist yet would be refused.
        account, role = configuration.settings.account, configuration.caller_role(stage)
        caller = f"arn:{cdk.Aws.PARTITION}:iam::{account}:role/{role}"
        trusted = iam.AccountPrincipal(account).with_conditions({"ArnEquals": {"aws:PrincipalArn": caller}})
        starter = iam.Role(
            self,
            "Starter",
            role_name=stage.starter_role,
            assumed_by=trusted,  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
            max_session_duration=cdk.Duration.hours(1),
        )
        names = (naming.build_project(stage.experiment, step.name) for step in steps)
        arns = (self._arn("codebuild", "project", name) for name in names)
        starter.add_to_policy(allow("codebuild:StartBuild BatchGetBuilds", *arns, sid="StartAndWatch"))
