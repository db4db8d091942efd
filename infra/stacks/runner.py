"""Builds that talk to the cluster: what they have in common, and the one that runs the experiment, deployed with it.

A build runs in a container of CodeBuild inside the VPC, from the sources of the tree that was deployed. It costs nothing while none
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from infra.stacks.bastion import reach_endpoint
from infra.stacks.experiment_stack import ExperimentStack, StackOfCluster, allow, service_role
from infra.stacks.identity import admit_builds
from trnspec.core.checkout import ROOT
from trnspec.experiment import naming
from trnspec.experiment.naming import MAX_BUILD_MINUTES

SOURCES = (
    "cdk8s_charts", "experiments", "infra", "manifests", "scripts", "src", "trnspec",
    "cdk.json", "package.json", "package-lock.json", "pyproject.toml", "uv.lock",
)  # fmt: skip
"""The part of the repository that the builds need."""
RUNTIMES = {"runtime-versions": {"python": "3.11", "nodejs": "22"}}
"""Versions in the image STANDARD_7_0: the Python of the tests, and Node for the steps of CDK Pipelines outside the repository;
inside the repository Node is installed by pip."""
RUN = ".venv/bin/python -m trnspec.operations.running.in_build"


def build_spec(commands: Sequence[str], *, install: Sequence[str] = ()) -> dict[str, Any]:
    prepared = {"commands": list(install)} if install else {}
    return {
        "version": "0.2",
        "phases": {"install": {**RUNTIMES, **prepared}, "build": {"commands": list(commands)}},
    }


class BuildsStack(ExperimentStack):
    """CodeBuild projects in the private subnets, their role, and its access to the cluster by the rendered roles of one group."""

    def __init__(
        self, scope: Construct, part: str, description: str, control: StackOfCluster, *, role_name: str
    ) -> None:
        super().__init__(scope, part, description, control.deployed)
        source = s3_assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            exclude=["*", *(f"!{name}" for name in SOURCES), "**/__pycache__"],
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        self.role = service_role(self, "Role", "codebuild", role_name=role_name)
        self._cluster = self._arn("eks", "cluster", naming.cluster_name(self.experiment))
        self._allow("SeeCluster", "eks:DescribeCluster", self._cluster)
        admit_builds(self, self.role, control.cluster)
        group = reach_endpoint(
            self,
            control,
            description="builds",
            outwards="AWS, registries, the cluster",
            inwards="kubectl of the builds",
        )
        self._common: dict[str, Any] = {
            "source": codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            "environment": codebuild.BuildEnvironment(build_image=codebuild.LinuxBuildImage.STANDARD_7_0),
            "vpc": control.vpc,
            "subnet_selection": ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            "security_groups": [group],
            "role": self.role,
            "grant_report_group_permissions": False,
        }

    def project(
        self,
        name: str,
        *commands: str,
        minutes: int = MAX_BUILD_MINUTES,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Add a project of this name behind the experiment's; its builds end after so many `minutes`."""
        # CodePipeline's archive of a GitHub repository keeps no permissions (see `PREPARE` of the pipeline).
        spec = build_spec(commands, install=("chmod +x trnspec scripts/*", "scripts/setup"))
        group = logs.LogGroup(
            self, f"{name.capitalize()}Logs", log_group_name=naming.build_log_group(self.experiment, name)
        )
        # The build runs in the endpoint's network and needs no tunnel.
        given = {
            key: codebuild.BuildEnvironmentVariable(value=value)
            for key, value in {"PYTHONPATH": "src", "CLUSTER_ENDPOINT": "direct", **variables}.items()
        }
        codebuild.Project(
            self,
            name.capitalize(),
            project_name=naming.build_project(self.experiment, name),
            description=f"{self.experiment.name}: {name}",
            build_spec=codebuild.BuildSpec.from_object(spec),
            environment_variables=given,
            timeout=cdk.Duration.minutes(minutes),
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=group)),
            **self._common,
        )

    def _arn(self, service: str, resource: str, name: str | None = None, region: str | None = None) -> str:
        return self.format_arn(service=service, resource=resource, resource_name=name, region=region)

    def _allow(self, sid: str, actions: str, *resources: str, where: dict[str, str] | None = None) -> None:
        condition = {"StringEquals": where} if where else None
        self.role.add_to_policy(allow(actions, *resources, sid=sid, where=condition))


class RunnerStack(BuildsStack):
    """The project that `./trnspec run --remote` and the pipeline's step start; `arguments` are those of a build that is given none."""

    def __init__(
        self,
        scope: Construct,
        control: StackOfCluster,
        *,
        store: kms.IKey,
        notices: kms.IKey,
        arguments: str = "",
        afterwards: Sequence[str] = (),
    ) -> None:
        experiment = control.experiment
        name = naming.runner_role_name(experiment)
        super().__init__(scope, "run", "runs of the experiment in CodeBuild", control, role_name=name)
        self.project("run", RUN, *afterwards, variables={naming.RUN_ARGUMENTS: arguments})
        self._allow_run(store)
        topic = self._arn("sns", naming.notices_topic(experiment))
        self._allow("TellHowItEnded", "sns:Publish", topic)
        self._allow("KeyOfNotices", "kms:Decrypt GenerateDataKey", notices.key_arn)
        # Before the time of a build is over it starts the next one.
        own = self._arn("codebuild", "project", naming.build_project(experiment, "run"))
        self._allow("GoOn", "codebuild:StartBuild", own)

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
