"""One account's share of the pipeline: the experiment's stacks as in any deployment, and two of the delivery: build projects
inside its VPC, and who may start them.

What talks to a cluster runs inside its VPC, in a project of the stage's own account that the pipeline only starts and waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from infra.deployment import DeliveryResources, add_stacks
from infra.pipeline.pipeline_file import (
    AROUND_MINUTES,
    PipelineConfiguration,
    StageConfiguration,
    delivery_role_name,
)
from infra.stacks.cluster import reach_endpoint
from infra.stacks.experiment_stack import ExperimentStack, allow, keep_logs
from trnspec.core.checkout import ROOT
from trnspec.experiment import naming

SOURCES = (
    "cdk8s_charts", "experiments", "infra", "manifests", "scripts", "src", "trnspec",
    "cdk.json", "package.json", "package-lock.json", "pyproject.toml", "uv.lock",
)  # fmt: skip
"""The part of the repository that the steps need."""
DELIVER = ".venv/bin/python -m trnspec.operations.delivery"
RUNTIMES = {"runtime-versions": {"python": "3.11", "nodejs": "22"}}
"""Versions in the image STANDARD_7_0: the Python of the tests, and Node for the steps of CDK Pipelines outside the repository;
inside the repository Node is installed by pip."""


PATH_OF_PACKAGE = {"PYTHONPATH": codebuild.BuildEnvironmentVariable(value="src")}


def build_spec(commands: Sequence[str], *, install: Sequence[str] = ()) -> dict[str, Any]:
    prepared = {"commands": list(install)} if install else {}
    return {
        "version": "0.2",
        "phases": {"install": {**RUNTIMES, **prepared}, "build": {"commands": list(commands)}},
    }


@dataclass(frozen=True, kw_only=True)
class ClusterStep:
    name: str
    commands: tuple[str, ...]
    minutes: int
    starts_nodes: bool
    """Whether it may set the Trn2 group to more than 0."""

    @property
    def waiting_minutes(self) -> int:
        """The timeout of the pipeline's build that starts this one and waits for it."""
        return self.minutes + AROUND_MINUTES


def dev_steps(stage: StageConfiguration) -> tuple[ClusterStep, ...]:
    """Return the steps after every deployment; they need no Trn2 node."""
    smoke = f"{DELIVER} smoke {stage.path} --account {stage.account}"
    return (ClusterStep(name="smoke", commands=(smoke,), minutes=30, starts_nodes=False),)


def prod_steps(configuration: PipelineConfiguration) -> tuple[ClusterStep, ...]:
    """Return the steps after the approval and the deployment, in order; the gate reads both runs from the results bucket."""
    stage, settings = configuration.prod, configuration.settings
    if settings.run == "never":
        return dev_steps(stage)
    ends = "--until compile" if settings.run == "compile" else "--out results/run"
    commands = [f"./trnspec run {stage.path} --account {stage.account} --hours {settings.hours} {ends}"]
    if settings.baseline_run:
        results = f"s3://{naming.bucket(stage.experiment, 'results', stage.account)}/runs"
        commands += [
            f"aws s3 cp --only-show-errors --recursive {results}/{settings.baseline_run} results/baseline",
            ".venv/bin/python -m trnspec.benchmark gate results/run --baseline results/baseline",
        ]
    minutes = (settings.hours + 1) * 60
    return (
        *dev_steps(stage),
        ClusterStep(name="run", commands=tuple(commands), minutes=minutes, starts_nodes=True),
    )


def project_name(stage: StageConfiguration, step: ClusterStep) -> str:
    """CodeBuild project in the stage's account."""
    return f"{stage.experiment.name}-{step.name}"


class DeliveredStage(cdk.Stage):
    """All stacks of one stage. Every role has the permissions boundary, because the execution policy requires it."""

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
            env=cdk.Environment(account=stage.account, region=stage.experiment.cluster.region),
            permissions_boundary=cdk.PermissionsBoundary.from_name(configuration.settings.boundary),
        )
        made = add_stacks(
            self, experiment=stage.experiment, files=stage.files, settings=stage.deployment_settings
        )
        starts_nodes = any(step.starts_nodes for step in steps)
        role = DeliveryRoleStack(self, stage=stage, starts_nodes=starts_nodes, key=made.storage.store.key)
        made.cluster.add_stack_dependency(role)
        delivery = DeliveryStack(self, configuration=configuration, stage=stage, steps=steps, made=made)
        delivery.add_stack_dependency(role)
        keep_logs(delivery, stage.deployment_settings)


class DeliveryRoleStack(ExperimentStack):
    """The role of the projects. It is created before the cluster, because EKS refuses an access entry for a role that does not
    exist."""

    def __init__(
        self, scope: Construct, *, stage: StageConfiguration, starts_nodes: bool, key: kms.IKey
    ) -> None:
        experiment, described = stage.experiment, "role of the delivery's steps"
        super().__init__(
            scope, "delivery-role", described, experiment=experiment, settings=stage.deployment_settings
        )
        self._role = iam.Role(
            self,
            "Role",
            role_name=delivery_role_name(experiment),
            assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"),  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
        )
        self._cluster = self._arn("eks", "cluster", naming.cluster_name(experiment))
        self._allow("SeeCluster", "eks:DescribeCluster", self._cluster)
        # What the smoke step asks of pins, zone and quotas.
        self._allow("SeeVersions", "eks:DescribeAddonVersions DescribeClusterVersions", "*")
        self._allow("SeeOffers", "ec2:DescribeImages DescribeInstanceTypeOfferings", "*")
        self._allow("SeeQuotas", "servicequotas:GetServiceQuota", self._arn("servicequotas", "ec2", "*"))
        if starts_nodes:
            self._allow_run(key)

    def _arn(self, service: str, resource: str, name: str | None = None, region: str | None = None) -> str:
        return self.format_arn(service=service, resource=resource, resource_name=name, region=region)

    def _allow(self, sid: str, actions: str, *resources: str, where: dict[str, str] | None = None) -> None:
        condition = {"StringEquals": where} if where else None
        self._role.add_to_policy(allow(actions, *resources, sid=sid, where=condition))

    def _allow_run(self, key: kms.IKey) -> None:
        """Allow what `./trnspec run` needs: start and stop nodes, a schedule that turns them off, state and results."""
        experiment = self.experiment
        name, schedules = naming.cluster_name(experiment), naming.schedule_group(experiment)
        group = self._arn("eks", "nodegroup", f"{name}/{naming.neuron_nodegroup(experiment)}/*")
        groups = self._arn("eks", "nodegroup", f"{name}/{naming.neuron_nodegroups(experiment)}*/*")
        off = self._arn("iam", "role", naming.off_role_name(experiment), region="")
        results, checkpoints, artifacts = (
            f"arn:{cdk.Aws.PARTITION}:s3:::{naming.bucket(experiment, purpose, cdk.Aws.ACCOUNT_ID)}"
            for purpose in ("results", "checkpoints", "artifacts")
        )
        prefixes = (naming.RESULTS_PREFIX, naming.PLANS_PREFIX, naming.STATE_PREFIX)
        written = [f"{results}/{prefix}*" for prefix in prefixes]
        markers = [f"{bucket}/*/{naming.COMPLETE}" for bucket in (checkpoints, artifacts)]
        differences = f"{artifacts}/*/neuron_config_differences.json"
        self._allow("Nodes", "eks:UpdateNodegroupConfig", group)
        # If the described group does not exist, a run says which one does.
        self._allow("SeeNodes", "eks:DescribeNodegroup ListNodegroups", groups, self._cluster)
        self._allow("SeeLaunches", "autoscaling:DescribeScalingActivities", "*")  # it has no resource type
        schedule = "scheduler:CreateSchedule UpdateSchedule GetSchedule DeleteSchedule"
        self._allow("TurnOff", schedule, self._arn("scheduler", "schedule", f"{schedules}/*"))
        passed = {"iam:PassedToService": "scheduler.amazonaws.com"}
        self._allow("TurnOffRole", "iam:PassRole", off, where=passed)
        self._allow("ProveTurnOff", "iam:SimulatePrincipalPolicy", off)
        self._allow("Results", "s3:GetObject PutObject", *written)
        self._allow("LetGoOfTheRun", "s3:DeleteObject", f"{results}/{naming.ACTIVE_RUN}")
        # The whole bucket: only a caller that may list without a prefix learns that an object is absent
        # (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html, "Permissions").
        self._allow("ListResults", "s3:ListBucket", results)
        tagging = "s3:GetObjectTagging PutObjectTagging DeleteObjectTagging"
        self._allow("DropMarkers", "s3:DeleteObject", f"{artifacts}/*/{naming.COMPLETE}")
        self._allow("TagStaleArtifacts", tagging, f"{artifacts}/*")
        topic = self._arn("sns", naming.notices_topic(experiment))
        self._allow("SeeWhoReceivesAlarms", "sns:ListSubscriptionsByTopic", topic)
        # The action has no resource type; the condition limits it.
        own = {"cloudwatch:namespace": naming.metrics_namespace(experiment)}
        self._allow("SayThatNoRunIsOn", "cloudwatch:PutMetricData", "*", where=own)
        if experiment.cluster.capacity.kind == "capacity-block":
            self._allow("WhenTheBlockBegins", "ec2:DescribeCapacityReservations", "*")
        if experiment.cluster.capacity.max_usd_per_hour is not None:
            self._allow("PriceOfSpotNodes", "ec2:DescribeSpotPriceHistory", "*")
        self._allow("Markers", "s3:GetObject", *markers)
        self._allow("ListMarkers", "s3:ListBucket", checkpoints, artifacts)
        self._allow("ReadEngines", "s3:GetObject", f"{artifacts}/*/neuron_config.json", differences)
        self._allow("CompareEngines", "s3:PutObject", differences)
        self._allow("Key", "kms:Decrypt GenerateDataKey", key.key_arn)


class DeliveryStack(ExperimentStack):
    """One CodeBuild project per step, in the private subnets, with access to the cluster's endpoint. The pipeline's account starts
    them."""

    def __init__(
        self,
        scope: Construct,
        *,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
        made: DeliveryResources,
    ) -> None:
        experiment, described = stage.experiment, "steps of the delivery"
        super().__init__(
            scope, "delivery", described, experiment=experiment, settings=stage.deployment_settings
        )
        vpc = self.network(made.vpc)
        source = s3_assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=["*", *(f"!{name}" for name in SOURCES), "**/__pycache__"],
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        # Imported by name, so that further permissions of the builds are granted in this stack, not in the one before the cluster.
        role = iam.Role.from_role_name(self, "Role", delivery_role_name(experiment))
        group = reach_endpoint(
            self,
            cluster=made.cluster.cluster,
            vpc=vpc,
            description="builds of the delivery",
            outwards="AWS, registries, the cluster",
            inwards="kubectl of the delivery",
        )
        common: dict[str, Any] = {
            "source": codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            "environment": codebuild.BuildEnvironment(build_image=codebuild.LinuxBuildImage.STANDARD_7_0),
            "environment_variables": {
                **PATH_OF_PACKAGE,
                # The build runs in the endpoint's network and needs no tunnel.
                "CLUSTER_ENDPOINT": codebuild.BuildEnvironmentVariable(value="direct"),
            },
            "vpc": vpc,
            "subnet_selection": ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            "security_groups": [group],
            "role": role,
            "concurrent_build_limit": 1,
            "grant_report_group_permissions": False,
        }
        projects = [self._project(stage, step, common) for step in steps]
        self._add_starter(configuration, stage, projects)

    def _project(
        self, stage: StageConfiguration, step: ClusterStep, common: dict[str, Any]
    ) -> codebuild.Project:
        name = step.name.capitalize()
        # CodePipeline's archive of a GitHub repository keeps no permissions (see `PREPARE` of the pipeline).
        install = ("chmod +x trnspec scripts/*", "scripts/setup")
        group = logs.LogGroup(self, f"{name}Logs")
        return codebuild.Project(
            self,
            name,
            project_name=project_name(stage, step),
            description=f"{stage.experiment.name}: {step.name}",
            build_spec=codebuild.BuildSpec.from_object(build_spec(step.commands, install=install)),
            timeout=cdk.Duration.minutes(step.minutes),
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=group)),
            **common,
        )

    def _add_starter(
        self,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        projects: list[codebuild.Project],
    ) -> None:
        """Trust the account with a condition, because a principal that does not exist yet would be refused."""
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
        arns = (project.project_arn for project in projects)
        starter.add_to_policy(allow("codebuild:StartBuild BatchGetBuilds", *arns, sid="StartAndWatch"))
