"""One account's share of the pipeline: the experiment's stacks as everybody deploys them, and the delivery's own two: build projects
inside its VPC, and who may start them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as s3_assets

from experiment.naming import (
    ACTIVE_RUN,
    COMPLETE,
    PLANS_PREFIX,
    RESULTS_PREFIX,
    STATE_PREFIX,
    bucket,
    cluster_name,
    metrics_namespace,
    neuron_nodegroup,
    off_role_name,
    schedule_group,
)
from infra import ROOT
from infra.constructs.kept_logs import log_group
from infra.deployment import add_stacks
from infra.pipeline.build_steps import (
    ClusterStep,
    caller_role_name,
    delivery_role_name,
    project_name,
    starter_role_name,
)
from infra.settings import Settings
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from aws_cdk import aws_eks_v2 as eks
    from aws_cdk import aws_kms as kms
    from constructs import Construct

    from experiment import Experiment
    from infra.pipeline.pipeline_file import PipelineConfiguration, StageConfiguration
    from infra.settings import Settings

if TYPE_CHECKING:
    from constructs import Construct

    from infra.pipeline.build_steps import ClusterStep
    from infra.pipeline.pipeline_file import PipelineConfiguration, StageConfiguration
    from infra.stacks.cluster import ClusterStack
    from infra.stacks.network import NetworkStack
    from infra.stacks.storage import StorageStack


SOURCES = (
    "benchmark", "cdk8s_charts", "experiment", "experiments", "infra", "manifests", "operations", "scripts", "store",
    "cdk.json", "package.json", "package-lock.json", "requirements.txt", "requirements-dev.txt",
)  # fmt: skip
"""Of the repository, what the steps run."""


class DeliveryRoleStack(ExperimentStack):
    """The role that the projects work with. It comes before the cluster, whose access entry names it: EKS refuses an entry
    for a role that does not exist."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
        key: kms.IKey,
    ) -> None:
        experiment = stage.experiment
        super().__init__(scope, part, experiment=experiment, description="role of the delivery's steps")
        self.role = iam.Role(
            self,
            "Role",
            role_name=delivery_role_name(stage),
            assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"),
        )
        self._see(experiment)
        if any(step.starts_nodes for step in steps):
            self._run(experiment, key)

    def _see(self, experiment: Experiment) -> None:
        cluster = self.format_arn(service="eks", resource="cluster", resource_name=cluster_name(experiment))
        self.role.add_to_policy(
            iam.PolicyStatement(sid="SeeCluster", actions=["eks:DescribeCluster"], resources=[cluster])
        )

    def _run(self, experiment: Experiment, key: kms.IKey) -> None:
        """What `scripts/run` needs: nodes up and down, a schedule that turns them off, state and results."""
        name = cluster_name(experiment)
        group = self.format_arn(
            service="eks", resource="nodegroup", resource_name=f"{name}/{neuron_nodegroup(experiment)}/*"
        )
        schedules = self.format_arn(
            service="scheduler", resource="schedule", resource_name=f"{schedule_group(experiment)}/*"
        )
        off = self.format_arn(
            service="iam", region="", resource="role", resource_name=off_role_name(experiment)
        )
        buckets = {
            purpose: f"arn:{cdk.Aws.PARTITION}:s3:::{bucket(experiment, purpose, cdk.Aws.ACCOUNT_ID)}"
            for purpose in ("results", "checkpoints", "artifacts")
        }
        statements: tuple[tuple[str, list[str], list[str], dict[str, dict[str, Any]]], ...] = (
            ("Nodes", ["eks:DescribeNodegroup", "eks:UpdateNodegroupConfig"], [group], {}),
            (
                "TurnOff",
                [f"scheduler:{verb}Schedule" for verb in ("Create", "Update", "Get", "Delete")],
                [schedules],
                {},
            ),
            (
                "TurnOffRole",
                ["iam:PassRole"],
                [off],
                {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}},
            ),
            ("ProveTurnOff", ["iam:SimulatePrincipalPolicy"], [off], {}),
            (
                "Results",
                ["s3:GetObject", "s3:PutObject"],
                [
                    f"{buckets['results']}/{prefix}*"
                    for prefix in (RESULTS_PREFIX, PLANS_PREFIX, STATE_PREFIX)
                ],
                {},
            ),
            (
                "LetGoOfTheRun",
                ["s3:DeleteObject"],
                [f"{buckets['results']}/{ACTIVE_RUN}"],
                {},
            ),
            # The whole bucket: whether an object is absent is told only to who may list without a prefix
            # (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html, "Permissions").
            ("ListResults", ["s3:ListBucket"], [buckets["results"]], {}),
            (
                "TagStaleArtifacts",
                ["s3:GetObjectTagging", "s3:PutObjectTagging", "s3:DeleteObjectTagging"],
                [f"{buckets['artifacts']}/*"],
                {},
            ),
            (
                "SayThatNoRunIsOn",
                ["cloudwatch:PutMetricData"],
                ["*"],  # the action knows no resource; the condition confines it
                {"StringEquals": {"cloudwatch:namespace": metrics_namespace(experiment)}},
            ),
            (
                "Markers",
                ["s3:GetObject"],
                [f"{buckets[purpose]}/*/{COMPLETE}" for purpose in ("checkpoints", "artifacts")],
                {},
            ),
            ("ListMarkers", ["s3:ListBucket"], [buckets["checkpoints"], buckets["artifacts"]], {}),
            ("Key", ["kms:Decrypt", "kms:GenerateDataKey"], [key.key_arn], {}),
        )
        for sid, actions, resources, conditions in statements:
            self.role.add_to_policy(
                iam.PolicyStatement(
                    sid=sid, actions=actions, resources=resources, conditions=conditions or None
                )
            )


class DeliveryStack(ExperimentStack):
    """A project a step, in the private subnets, let in to the cluster's endpoint; started from the pipeline's account."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
        settings: Settings,
        cluster: eks.ICluster,
        vpc: ec2.Vpc,
    ) -> None:
        super().__init__(scope, part, experiment=stage.experiment, description="steps of the delivery")
        self._vpc, self._settings = vpc, settings
        # By name: what the builds need on top is granted in this stack, not in the one before the cluster.
        self._role = iam.Role.from_role_name(self, "Role", delivery_role_name(stage))
        self._source = s3_assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=["*", *(f"!{name}" for name in SOURCES), "**/__pycache__"],
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        self._group = self._outwards(cluster, vpc)
        projects = [self._project(stage, step) for step in steps]
        self._starter(configuration, stage, projects)

    def _outwards(self, cluster: eks.ICluster, vpc: ec2.Vpc) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self, "Outwards", vpc=vpc, description="builds of the delivery", allow_all_outbound=False
        )
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS, registries, the cluster")
        ec2.CfnSecurityGroupIngress(
            self,
            "ToEndpoint",
            group_id=cluster.cluster_security_group_id,
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            source_security_group_id=group.security_group_id,
            description="kubectl of the delivery",
        )
        return group

    def _project(self, stage: StageConfiguration, step: ClusterStep) -> codebuild.Project:
        name = step.name.capitalize()
        logs = log_group(self, f"{name}Logs", days=self._settings.log_days)
        return codebuild.Project(
            self,
            name,
            project_name=project_name(stage, step),
            description=f"{stage.experiment.name}: {step.name}",
            source=codebuild.Source.s3(bucket=self._source.bucket, path=self._source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_object(step.build_spec),
            environment=codebuild.BuildEnvironment(build_image=codebuild.LinuxBuildImage.STANDARD_7_0),
            # The build stands beside the endpoint; the tunnel that people need would be a detour.
            environment_variables={
                "CLUSTER_ENDPOINT": codebuild.BuildEnvironmentVariable(value="direct"),
            },
            vpc=self._vpc,
            subnet_selection=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            security_groups=[self._group],
            role=self._role,
            timeout=cdk.Duration.minutes(step.minutes),
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=logs)),
            concurrent_build_limit=1,
            grant_report_group_permissions=False,
        )

    def _starter(
        self,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        projects: list[codebuild.Project],
    ) -> None:
        caller = f"arn:{cdk.Aws.PARTITION}:iam::{configuration.account}:role/{caller_role_name(configuration, stage)}"
        starter = iam.Role(
            self,
            "Starter",
            role_name=starter_role_name(stage),
            # The account with a condition, for a principal that does not exist yet would be refused.
            assumed_by=iam.AccountPrincipal(configuration.account).with_conditions(
                {"ArnEquals": {"aws:PrincipalArn": caller}}
            ),
            max_session_duration=cdk.Duration.hours(1),
        )
        starter.add_to_policy(
            iam.PolicyStatement(
                sid="StartAndWatch",
                actions=["codebuild:StartBuild", "codebuild:BatchGetBuilds"],
                resources=[project.project_arn for project in projects],
            )
        )


class DeliveredStage(cdk.Stage):
    """Every role in it carries the permissions boundary, without which the execution policy makes none."""

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
            permissions_boundary=cdk.PermissionsBoundary.from_name(configuration.boundary),
        )
        settings = Settings()
        add_stacks(
            self,
            experiment=stage.experiment,
            files=stage.files,
            lasting=stage.lasting,
            settings=settings,
        )
        network = cast("NetworkStack", self.node.find_child("network"))
        storage = cast("StorageStack", self.node.find_child("storage"))
        cluster = cast("ClusterStack", self.node.find_child("cluster"))
        role = DeliveryRoleStack(self, "delivery-role", stage=stage, steps=steps, key=storage.store.key)
        cluster.add_stack_dependency(role)
        delivery = DeliveryStack(
            self,
            "delivery",
            configuration=configuration,
            stage=stage,
            steps=steps,
            settings=settings,
            cluster=cluster.cluster,
            vpc=network.vpc,
        )
        delivery.add_stack_dependency(role)
