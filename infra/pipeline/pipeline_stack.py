"""The delivery pipeline, deployed once by hand; after that it changes itself.

Checks and synthesis run in its own builds. The build that changes the pipeline installs the command line with `npm ci` from a lock
file that travels in the assembly.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_codepipeline as codepipeline
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import pipelines
from constructs import Construct

from infra.deployment_file import DeploymentSettings
from infra.pipeline.pipeline_file import (
    PipelineConfiguration,
    StageConfiguration,
)
from infra.pipeline.stage import (
    DELIVER,
    ClusterStep,
    DeliveredStage,
    dev_steps,
    prod_steps,
)
from infra.stacks.experiment_stack import allow, configure_log_groups, service_role
from infra.stacks.runner import RUNTIMES, build_spec
from infra.stacks.storage import ACCESS_LOG_DAYS, closed_bucket
from trnspec.experiment.naming import build_project

PREPARE = ["chmod +x trnspec .ci/run scripts/*"]
"""CodePipeline's archive of a GitHub repository keeps no permissions
(https://docs.aws.amazon.com/codepipeline/latest/userguide/troubleshooting.html#troubleshooting-file-permissions)."""
CHECKS = "./scripts/test"
BY_HAND = ".venv/bin/npx cdk deploy --app '.venv/bin/python pipeline.py' pipeline"
_AFTER_A_FAILURE = f"""\
[ "$CODEBUILD_BUILD_SUCCEEDING" = 1 ] || echo "This build has the image, runtimes and commands of the last commit that was \
delivered. A commit that needs others fails here every time: check it out on a workstation and run {BY_HAND} (docs/pipeline.md)\""""
"""The pipeline changes itself after Build only (https://github.com/aws/aws-cdk/issues/36120)."""
SYNTH = [
    "scripts/setup",
    ".venv/bin/npx cdk synth --quiet --app '.venv/bin/python pipeline.py'",
    # The lock file of what self-mutation installs, which gets the assembly and nothing of the repository.
    "mkdir -p cdk.out/cli && cp package.json package-lock.json cdk.out/cli/",
]
CDK_ASSETS = "3.3.1"
"""The newest `cdk-assets` that reads what the pinned library writes, because it takes the newest reader of the schema. Later ones bring
their own: 4.7.3 says "Maximum schema version supported is 54.x.x, but found 55.0.0"."""


def start_command(stage: StageConfiguration, step: ClusterStep) -> str:
    """Return the command of the pipeline's build, which starts the step's build in the stage's account and waits for it."""
    experiment = stage.experiment
    return (
        f"{DELIVER} start {build_project(experiment, step.name)} --region {experiment.cluster.region} "
        f"--role arn:aws:iam::{stage.settings.account}:role/{stage.starter_role} --minutes {step.minutes}"
    )


class PipelineStack(cdk.Stack):
    """The pipeline: source, checks, synthesis, self-mutation. It deploys `dev` at once and tries it. It deploys `prod` after an approval,
    tries it, and starts a run where the file asks for one."""

    def __init__(self, scope: Construct, construct_id: str, *, configuration: PipelineConfiguration) -> None:
        self._configuration, settings = configuration, configuration.settings
        super().__init__(
            scope,
            construct_id,
            stack_name=settings.name,
            description="delivery of the experiments",
            env=cdk.Environment(account=settings.account, region=settings.region),
            permissions_boundary=cdk.PermissionsBoundary.from_name(settings.boundary),
        )
        self._logs = logs.LogGroup(self, "Logs")
        self._source = pipelines.CodePipelineSource.connection(
            settings.repository,
            settings.branch,
            connection_arn=settings.connection,
            code_build_clone_output=False,
        )
        pipeline = self._pipeline()
        stage = configuration.prod
        self._add_stage(pipeline, configuration.dev, dev_steps(configuration.dev), [])
        run = configuration.settings.run
        nodes = "no Trn2 node starts" if run == "never" else f"then Trn2 nodes start there to {run}"
        approval = pipelines.ManualApprovalStep(
            "Approve",
            comment=f"Deploys {stage.experiment.name} to {stage.settings.account}; {nodes}. Read the pull request's review; it says what an hour "
            "costs.",
        )
        self._add_stage(pipeline, stage, prod_steps(configuration), [approval])
        configure_log_groups(self._logs, DeploymentSettings())
        pipeline.build_pipeline()
        # Where CDK's rights are too wide or outdated they are corrected once the pipeline is built, found by their path.
        for construct in pipeline.node.find_all():
            if isinstance(construct, iam.Role):
                self._narrow(construct, construct.node.path)
            elif isinstance(construct, codebuild.CfnProject) and "/UpdatePipeline/" in construct.node.path:
                self._install_from_lock(construct)

    def _narrow(self, role: iam.Role, path: str) -> None:
        if "/Assets/" in path:
            # Publishing starts and stops no builds; with CDK's right to any, it could start those behind the approval.
            # The role of CDK Pipelines drops a statement, even a Deny, that has exactly its own three actions.
            statement = allow("codebuild:StartBuild StopBuild", "*", sid="StartsAndStopsNothing")
            statement.effect = iam.Effect.DENY
        elif "/Source/" in path:
            # CDK knows the service by its former name only; a connection made today is checked by the new one.
            connection = self._configuration.settings.connection
            statement = allow("codeconnections:UseConnection", connection, sid="UseConnection")
        else:
            return
        role.add_to_policy(statement)

    def _install_from_lock(self, project: codebuild.CfnProject) -> None:
        """Install the command line from the lock file; no package may run an install script."""
        deploy = f"cli/node_modules/.bin/cdk -a . deploy {self.node.path} --require-approval=never --verbose"
        install = "npm ci --ignore-scripts --no-audit --no-fund --prefix cli"
        spec = build_spec([deploy], install=[install])
        project.add_property_override("Source.BuildSpec", json.dumps(spec, indent=1))

    def _pipeline(self) -> pipelines.CodePipeline:
        build: dict[str, Any] = {
            "input": self._source,
            "install_commands": PREPARE,
            "partial_build_spec": codebuild.BuildSpec.from_object(
                {"phases": {"post_build": {"commands": [_AFTER_A_FAILURE]}}}
            ),
        }
        synth = pipelines.CodeBuildStep("Synth", **build, commands=SYNTH, primary_output_directory="cdk.out")
        checks = pipelines.CodeBuildStep(
            "Checks",
            **build,
            commands=[CHECKS],
            timeout=cdk.Duration.hours(1),
            build_environment=codebuild.BuildEnvironment(compute_type=codebuild.ComputeType.MEDIUM),
        )
        synth.add_step_dependency(checks)
        cloud_watch = codebuild.CloudWatchLoggingOptions(log_group=self._logs)
        builds = pipelines.CodeBuildOptions(
            build_environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                environment_variables={"PYTHONPATH": codebuild.BuildEnvironmentVariable(value="src")},
            ),
            partial_build_spec=codebuild.BuildSpec.from_object({"phases": {"install": RUNTIMES}}),
            logging=codebuild.LoggingOptions(cloud_watch=cloud_watch),
        )
        return pipelines.CodePipeline(
            self,
            "Pipeline",
            pipeline_name=self._configuration.settings.name,
            pipeline_type=codepipeline.PipelineType.V2,
            # A newer commit waits for the older one's compilation instead of overtaking it.
            execution_mode=codepipeline.ExecutionMode.QUEUED,
            self_mutation=True,
            publish_assets_in_parallel=False,
            cdk_assets_cli_version=CDK_ASSETS,
            cross_account_keys=True,
            artifact_bucket=self._artifacts(),
            synth=synth,
            code_build_defaults=builds,
        )

    def _artifacts(self) -> s3.Bucket:
        """Return the bucket of sources and templates; the accounts of the stages read them with its key."""
        key = kms.Key(
            self,
            "Key",
            description=f"artifacts of {self._configuration.settings.name}",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        accesses = closed_bucket(
            self,
            "AccessLogs",
            encryption=s3.BucketEncryption.S3_MANAGED,
            lifecycle_rules=[s3.LifecycleRule(expiration=cdk.Duration.days(ACCESS_LOG_DAYS))],
        )
        return closed_bucket(
            self,
            "Artifacts",
            encryption=s3.BucketEncryption.KMS,
            encryption_key=key,
            bucket_key_enabled=True,
            server_access_logs_bucket=accesses,
            lifecycle_rules=[s3.LifecycleRule(expiration=cdk.Duration.days(30))],
        )

    def _add_stage(
        self,
        pipeline: pipelines.CodePipeline,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
        approval: list[pipelines.ManualApprovalStep],
    ) -> None:
        """Add the approval, then the deployment and the steps one after the other, each in a build that starts the stage's project and
        waits."""
        delivered = DeliveredStage(self, configuration=self._configuration, stage=stage, steps=steps)
        name, role = stage.name.capitalize(), self._caller(stage)
        after = [
            pipelines.CodeBuildStep(
                f"{name}{step.name.capitalize()}",
                input=self._source,
                install_commands=PREPARE,
                commands=["scripts/setup", start_command(stage, step)],
                role=role,  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
                timeout=cdk.Duration.minutes(step.waiting_minutes),
            )
            for step in steps
        ]
        for earlier, later in pairwise(after):
            later.add_step_dependency(earlier)
        pipeline.add_stage(delivered, pre=approval, post=after)

    def _caller(self, stage: StageConfiguration) -> iam.Role:
        name = self._configuration.caller_role(stage)
        role = service_role(self, f"{stage.name.capitalize()}StepsRole", "codebuild", role_name=name)
        starter = f"arn:{cdk.Aws.PARTITION}:iam::{stage.settings.account}:role/{stage.starter_role}"
        role.add_to_policy(allow("sts:AssumeRole", starter, sid="StartSteps"))
        return role
