"""One account's share of the pipeline: the experiment's stacks as in any deployment, and two of the delivery: build projects
inside its VPC, and who may start them.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from experiment import Experiment
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
    neuron_nodegroups,
    notices_topic,
    off_role_name,
    schedule_group,
)
from infra import ROOT
from infra.deployment import Made, add_stacks
from infra.pipeline.build_steps import PREPARE_STAGE, ClusterStep, build_spec, project_name
from infra.pipeline.pipeline_file import PipelineConfiguration, StageConfiguration, delivery_role_name
from infra.stacks.cluster import reach_endpoint
from infra.stacks.experiment_stack import (
    BUILD_LOGS,
    NO_RESOURCE,
    NODE_GROUP_ID,
    OWN_LOGS,
    SOURCE,
    UNKNOWN_KEYS,
    ExperimentStack,
    acknowledge,
    keep_logs,
)

SOURCES = (
    "benchmark", "cdk8s_charts", "core", "experiment", "experiments", "infra", "manifests", "operations", "scripts", "store", "trnspec",
    "cdk.json", "package.json", "package-lock.json", "requirements.txt", "requirements-dev.txt",
)  # fmt: skip
"""Of the repository, what the steps run."""


class DeliveredStage(cdk.Stage):
    """Every role in it carries the permissions boundary, without which the execution policy allows no role."""

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
        made = add_stacks(self, experiment=stage.experiment, files=stage.files, lasting=stage.lasting)
        starts_nodes = any(step.starts_nodes for step in steps)
        role = DeliveryRoleStack(self, stage=stage, starts_nodes=starts_nodes, key=made.storage.store.key)
        made.admits_pipeline.add_stack_dependency(role)
        delivery = DeliveryStack(
            self,
            configuration=configuration,
            stage=stage,
            steps=steps,
            made=made,
        )
        delivery.add_stack_dependency(role)
        keep_logs(delivery, stage.lasting)


class DeliveryRoleStack(ExperimentStack):
    """The role that the projects work with. It comes before the cluster, whose access entry names it: EKS refuses an entry
    for a role that does not exist."""

    def __init__(
        self, scope: Construct, *, stage: StageConfiguration, starts_nodes: bool, key: kms.IKey
    ) -> None:
        experiment, described = stage.experiment, "role of the delivery's steps"
        super().__init__(
            scope, "delivery-role", experiment=experiment, lasting=stage.lasting, description=described
        )
        self._role = iam.Role(
            self,
            "Role",
            role_name=delivery_role_name(experiment),
            assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"),
        )
        cluster = self.format_arn(service="eks", resource="cluster", resource_name=cluster_name(experiment))
        self._allow("SeeCluster", ["eks:DescribeCluster"], cluster)
        if starts_nodes:
            self._allow_run(experiment, key)

    def _allow(
        self, sid: str, actions: list[str], *resources: str, where: dict[str, str] | None = None
    ) -> None:
        self._role.add_to_policy(
            iam.PolicyStatement(
                sid=sid,
                actions=actions,
                resources=list(resources),
                conditions={"StringEquals": where} if where else None,
            )
        )

    def _allow_run(self, experiment: Experiment, key: kms.IKey) -> None:
        """What `./trnspec run` needs: nodes up and down, a schedule that turns them off, state and results."""
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
        results, checkpoints, artifacts = (
            f"arn:{cdk.Aws.PARTITION}:s3:::{bucket(experiment, purpose, cdk.Aws.ACCOUNT_ID)}"
            for purpose in ("results", "checkpoints", "artifacts")
        )
        written = [f"{results}/{prefix}*" for prefix in (RESULTS_PREFIX, PLANS_PREFIX, STATE_PREFIX)]
        schedule = [f"scheduler:{verb}Schedule" for verb in ("Create", "Update", "Get", "Delete")]
        tagging = [f"s3:{verb}ObjectTagging" for verb in ("Get", "Put", "Delete")]
        standing = self.format_arn(
            service="eks", resource="nodegroup", resource_name=f"{name}/{neuron_nodegroups(experiment)}*/*"
        )
        cluster = self.format_arn(service="eks", resource="cluster", resource_name=name)
        self._allow("Nodes", ["eks:UpdateNodegroupConfig"], group)
        # Where the described group does not exist, a run says which one does.
        self._allow("SeeNodes", ["eks:DescribeNodegroup", "eks:ListNodegroups"], standing, cluster)
        self._allow("TurnOff", schedule, schedules)
        self._allow(
            "TurnOffRole", ["iam:PassRole"], off, where={"iam:PassedToService": "scheduler.amazonaws.com"}
        )
        self._allow("ProveTurnOff", ["iam:SimulatePrincipalPolicy"], off)
        self._allow("Results", ["s3:GetObject", "s3:PutObject"], *written)
        self._allow("LetGoOfTheRun", ["s3:DeleteObject"], f"{results}/{ACTIVE_RUN}")
        # The whole bucket: only a caller that may list without a prefix learns that an object is absent
        # (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html, "Permissions").
        self._allow("ListResults", ["s3:ListBucket"], results)
        self._allow("TagStaleArtifacts", tagging, f"{artifacts}/*")
        topic = self.format_arn(service="sns", resource=notices_topic(experiment))
        self._allow("SeeWhoReceivesAlarms", ["sns:ListSubscriptionsByTopic"], topic)
        # The action has no resource type; the condition limits it.
        self._allow(
            "SayThatNoRunIsOn",
            ["cloudwatch:PutMetricData"],
            "*",
            where={"cloudwatch:namespace": metrics_namespace(experiment)},
        )
        self._allow("Markers", ["s3:GetObject"], f"{checkpoints}/*/{COMPLETE}", f"{artifacts}/*/{COMPLETE}")
        self._allow("ListMarkers", ["s3:ListBucket"], checkpoints, artifacts)
        differences = f"{artifacts}/*/neuron_config_differences.json"
        self._allow("ReadEngines", ["s3:GetObject"], f"{artifacts}/*/neuron_config.json", differences)
        self._allow("CompareEngines", ["s3:PutObject"], differences)
        self._allow("Key", ["kms:Decrypt", "kms:GenerateDataKey"], key.key_arn)
        metrics = f"{NO_RESOURCE}; a condition names one namespace"
        schedules = "schedules of one group, which holds nothing but what turns the nodes off"
        for reason, named in (
            (NODE_GROUP_ID, r"arn:.*:nodegroup/.*-trn2-[a-z0-9-]*\*?/\*"),
            (schedules, r"arn:.*:schedule/.*-off/\*"),
            (UNKNOWN_KEYS, r"arn:.*:s3:::.*-results-.*/(runs|plans|state)/\*"),
            (
                UNKNOWN_KEYS,
                r"arn:.*:s3:::.*-(artifacts|checkpoints)-.*/\*(/COMPLETE|/neuron_config(_differences)?\.json)?",
            ),
            (metrics, r"\*"),
        ):
            acknowledge(self._role, "IAM5", reason, f"Resource::{named}")


class DeliveryStack(ExperimentStack):
    """A project a step, in the private subnets, let in to the cluster's endpoint; started from the pipeline's account."""

    def __init__(
        self,
        scope: Construct,
        *,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
        made: Made,
    ) -> None:
        experiment, described = stage.experiment, "steps of the delivery"
        super().__init__(
            scope, "delivery", experiment=experiment, lasting=stage.lasting, description=described
        )
        vpc = self.network(made.vpc)
        cluster = self.cluster_of(made.cluster, vpc)
        source = s3_assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=["*", *(f"!{name}" for name in SOURCES), "**/__pycache__"],
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        # By name: what the builds need on top is granted in this stack, not in the one before the cluster.
        role = iam.Role.from_role_name(self, "Role", delivery_role_name(stage.experiment))
        acknowledge(role, "IAM5", SOURCE, r"Action::s3:.*\*")
        acknowledge(role, "IAM5", OWN_LOGS, BUILD_LOGS)
        interfaces = "CodeBuild hands its interfaces to itself; a condition names service and subnets"
        acknowledge(role, "IAM5", interfaces, r"Resource::.*:network-interface/\*")
        self._common: dict[str, Any] = {
            "source": codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            "environment": codebuild.BuildEnvironment(build_image=codebuild.LinuxBuildImage.STANDARD_7_0),
            # The build runs in the endpoint's network and needs no tunnel.
            "environment_variables": {
                "CLUSTER_ENDPOINT": codebuild.BuildEnvironmentVariable(value="direct"),
            },
            "vpc": vpc,
            "subnet_selection": ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            "security_groups": [
                # Its members reach the endpoint, so that no rule of an existing cluster is changed.
                cluster.cluster_security_group
                if made.cluster is None
                else reach_endpoint(
                    self,
                    cluster=cluster,
                    vpc=vpc,
                    description="builds of the delivery",
                    outwards="AWS, registries, the cluster",
                    inwards="kubectl of the delivery",
                )
            ],
            "role": role,
            "concurrent_build_limit": 1,
            "grant_report_group_permissions": False,
        }
        projects = [self._project(stage, step) for step in steps]
        # Of one role, CDK grants it with the first project.
        network = "describing the network, and interfaces in it, know no resource; CodeBuild needs both inside a VPC"
        acknowledge(projects[0], "IAM5", network, r"Resource::\*")
        self._add_starter(configuration, stage, projects)

    def _project(self, stage: StageConfiguration, step: ClusterStep) -> codebuild.Project:
        name = step.name.capitalize()
        group = logs.LogGroup(self, f"{name}Logs")
        project = codebuild.Project(
            self,
            name,
            project_name=project_name(stage, step),
            description=f"{stage.experiment.name}: {step.name}",
            build_spec=codebuild.BuildSpec.from_object(
                build_spec(step.commands, install=(*PREPARE_STAGE, "scripts/setup"))
            ),
            timeout=cdk.Duration.minutes(step.minutes),
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=group)),
            **self._common,
        )
        results = "the project stores nothing; results go to the experiment's own bucket and key"
        acknowledge(project, "CB4", results)
        return project

    def _add_starter(
        self,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        projects: list[codebuild.Project],
    ) -> None:
        caller = f"role/{configuration.caller_role(stage)}"
        starter = iam.Role(
            self,
            "Starter",
            role_name=stage.starter_role,
            # The account with a condition, for a principal that does not exist yet would be refused.
            assumed_by=iam.AccountPrincipal(configuration.account).with_conditions(
                {
                    "ArnEquals": {
                        "aws:PrincipalArn": f"arn:{cdk.Aws.PARTITION}:iam::{configuration.account}:{caller}"
                    }
                }
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
