"""The delivery pipeline, deployed once by hand; after that it changes itself.

Its builds that deploy or publish install with `npm ci` from lock files that travel in the assembly. CDK Pipelines installs the
command line by version alone, and whatever npm calls the latest `cdk-assets`, one build an asset. 4.7.3 refuses what the pinned
library writes ("Maximum schema version supported is 54.x.x, but found 55.0.0"); `cdk publish-assets` reads it, but as the role
that may deploy, which nothing before the approval should be. The library behind `cdk-assets` takes on the publishing roles alone.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_codepipeline as codepipeline
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import pipelines
from constructs import Construct

from infra.deployment_file import Lasting
from infra.pipeline import build_steps as plan
from infra.pipeline.build_steps import ClusterStep, build_spec
from infra.pipeline.pipeline_file import AROUND_MINUTES, PipelineConfiguration, StageConfiguration
from infra.pipeline.stage import DeliveredStage
from infra.stacks.experiment_stack import BUILD_LOGS, OWN_LOGS, acknowledge, keep_logs
from infra.stacks.storage import ACCESS_LOG_DAYS, closed_bucket

_COMMANDS = {
    "/UpdatePipeline/": (
        plan.CLI_FOLDER,
        "cli/node_modules/.bin/cdk -a . deploy {stack} --require-approval=never --verbose",
    ),
    "/Assets/": (plan.PUBLISH_FOLDER, "node publish/publish_assets.js ."),
}
"""By the place of a project below the pipeline: the folder of its lock file, and what it runs in the folder of the cloud
assembly."""


class PullRequestChecks(Construct):
    """Runs code that nobody has reviewed, so its role can write a log and fetch the code, nothing else.

    To fetch, the role may read the token of a connection, and so may the code. Therefore the connection is not the
    pipeline's, and the build waits for an administrator of the repository, who could do all that the token can: a comment
    names the commit that may be built. CodeBuild builds what an approver proposes without a comment
    (https://docs.aws.amazon.com/codebuild/latest/userguide/pull-request-build-policy.html).
    """

    def __init__(self, scope: Construct, construct_id: str, *, configuration: PipelineConfiguration) -> None:
        super().__init__(scope, construct_id)
        owner, repository = configuration.repository.split("/")
        group = logs.LogGroup(self, "Logs")
        project = codebuild.Project(
            self,
            "Project",
            project_name=f"{configuration.name}-pull-requests",
            description="checks and review of a pull request",
            source=codebuild.Source.git_hub(  # whole history: the review reads the base from git
                owner=owner,
                repo=repository,
                webhook_filters=[
                    codebuild.FilterGroup.in_event_of(
                        codebuild.EventAction.PULL_REQUEST_CREATED,
                        codebuild.EventAction.PULL_REQUEST_UPDATED,
                        codebuild.EventAction.PULL_REQUEST_REOPENED,
                    ).and_base_branch_is(configuration.branch)
                ],
            ),
            build_spec=codebuild.BuildSpec.from_object(build_spec(plan.PULL_REQUEST)),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0, compute_type=codebuild.ComputeType.MEDIUM
            ),
            timeout=cdk.Duration.hours(1),
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=group)),
            grant_report_group_permissions=False,
        )
        self._connect(project, configuration.pull_request_connection)
        acknowledge(project, "IAM5", OWN_LOGS, BUILD_LOGS)
        acknowledge(project, "CB4", "the project stores nothing; its result is a log")

    def _connect(self, project: codebuild.Project, connection: str) -> None:
        """Through the connection, so that no token is stored
        (https://docs.aws.amazon.com/codebuild/latest/userguide/connections-github-app.html)."""
        project.add_to_role_policy(
            iam.PolicyStatement(
                sid="FetchCode",
                actions=["codeconnections:GetConnection", "codeconnections:GetConnectionToken"],
                resources=[connection],
            )
        )
        resource = project.node.default_child
        assert isinstance(resource, codebuild.CfnProject)
        resource.add_property_override("Source.Auth", {"Type": "CODECONNECTIONS", "Resource": connection})
        resource.add_property_override(
            "Triggers.PullRequestBuildPolicy",
            {"RequiresCommentApproval": "ALL_PULL_REQUESTS", "ApproverRoles": ["GITHUB_ADMIN"]},
        )


class PipelineStack(cdk.Stack):
    """Source, checks, synthesis, self-mutation; `dev` at once; `prod` after an approval, compiled, tried, measured."""

    def __init__(self, scope: Construct, construct_id: str, *, configuration: PipelineConfiguration) -> None:
        super().__init__(
            scope,
            construct_id,
            stack_name=configuration.name,
            description="delivery of the experiments",
            env=cdk.Environment(account=configuration.account, region=configuration.region),
            permissions_boundary=cdk.PermissionsBoundary.from_name(configuration.boundary),
        )
        self._configuration = configuration
        self._logs = logs.LogGroup(self, "Logs")
        self._source = pipelines.CodePipelineSource.connection(
            configuration.repository,
            configuration.branch,
            connection_arn=configuration.connection,
            code_build_clone_output=False,
        )
        pipeline = self._pipeline()
        self._add_dev(pipeline)
        self._add_prod(pipeline)
        checks = PullRequestChecks(self, "PullRequests", configuration=configuration)
        for logged in (self._logs, checks):
            keep_logs(logged, Lasting())
        pipeline.build_pipeline()
        # Where CDK's rights are too wide or outdated they are corrected once the pipeline is built, found by their path.
        for found in pipeline.node.find_all():
            if isinstance(found, iam.Role):
                self._narrow(found, found.node.path)
                _acknowledge(found, found.node.path)
            elif isinstance(found, codebuild.CfnProject):
                self._install_from_lock(found, found.node.path)

    def _narrow(self, role: iam.Role, path: str) -> None:
        if "/Assets/" in path:
            # Publishing starts and stops no builds; with CDK's right to any, it could start those behind the approval.
            # The role of CDK Pipelines drops a statement, even a Deny, that has exactly its own three actions.
            role.add_to_policy(
                iam.PolicyStatement(
                    sid="StartsAndStopsNothing",
                    effect=iam.Effect.DENY,
                    actions=["codebuild:StartBuild", "codebuild:StopBuild"],
                    resources=["*"],
                )
            )
        elif "/Source/" in path:
            # CDK knows the service by its former name only; a connection made today is checked by the new one.
            role.add_to_policy(
                iam.PolicyStatement(
                    sid="UseConnection",
                    actions=["codeconnections:UseConnection"],
                    resources=[self._configuration.connection],
                )
            )

    def _install_from_lock(self, project: codebuild.CfnProject, path: str) -> None:
        """No package may run an install script."""
        for place, (folder, command) in _COMMANDS.items():
            if place in path:
                install = f"npm ci --ignore-scripts --no-audit --no-fund --prefix {folder}"
                spec = build_spec([command.format(stack=self.node.path)], install=[install])
                project.add_property_override("Source.BuildSpec", json.dumps(spec, indent=1))

    def _pipeline(self) -> pipelines.CodePipeline:
        synth = pipelines.ShellStep(
            "Synth",
            input=self._source,
            install_commands=list(plan.PREPARE),
            commands=list(plan.SYNTH),
            primary_output_directory="cdk.out",
        )
        synth.add_step_dependency(self._checks())
        return pipelines.CodePipeline(
            self,
            "Pipeline",
            pipeline_name=self._configuration.name,
            pipeline_type=codepipeline.PipelineType.V2,
            # A newer commit waits for the older one's compilation instead of overtaking it.
            execution_mode=codepipeline.ExecutionMode.QUEUED,
            self_mutation=True,
            publish_assets_in_parallel=False,
            cross_account_keys=True,
            artifact_bucket=self._artifacts(),
            synth=synth,
            code_build_defaults=self._builds(),
        )

    def _builds(self) -> pipelines.CodeBuildOptions:
        return pipelines.CodeBuildOptions(
            build_environment=codebuild.BuildEnvironment(build_image=codebuild.LinuxBuildImage.STANDARD_7_0),
            partial_build_spec=codebuild.BuildSpec.from_object({"phases": {"install": plan.RUNTIMES}}),
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=self._logs)
            ),
        )

    def _checks(self) -> pipelines.CodeBuildStep:
        return pipelines.CodeBuildStep(
            "Checks",
            input=self._source,
            install_commands=list(plan.PREPARE),
            commands=list(plan.CHECKS),
            timeout=cdk.Duration.hours(1),
            build_environment=codebuild.BuildEnvironment(compute_type=codebuild.ComputeType.MEDIUM),
        )

    def _artifacts(self) -> s3.Bucket:
        """Sources and templates on their way; the accounts of the stages read them with the key."""
        key = kms.Key(
            self,
            "Key",
            description=f"artifacts of {self._configuration.name}",
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

    def _add_dev(self, pipeline: pipelines.CodePipeline) -> None:
        stage = self._configuration.dev
        wanted = plan.dev_steps(stage)
        delivered = DeliveredStage(self, configuration=self._configuration, stage=stage, steps=wanted)
        clear, *after = self._steps(stage, wanted)
        pipeline.add_stage(delivered, pre=[clear], post=after)

    def _add_prod(self, pipeline: pipelines.CodePipeline) -> None:
        stage = self._configuration.prod
        wanted = plan.prod_steps(self._configuration)
        delivered = DeliveredStage(self, configuration=self._configuration, stage=stage, steps=wanted)
        approval = pipelines.ManualApprovalStep(
            "ApproveTrn2Nodes",
            comment=f"Deploys {stage.experiment.name} to {stage.account}, then starts Trn2 nodes there to compile. "
            f"Read the pull request's review; it says what an hour costs.",
        )
        clear, *after = self._steps(stage, wanted)
        clear.add_step_dependency(approval)
        pipeline.add_stage(delivered, pre=[approval, clear], post=after)

    def _steps(self, stage: StageConfiguration, wanted: tuple[ClusterStep, ...]) -> list[pipelines.Step]:
        """First the one before the deployment, then those after it, one after the other, each in a build that starts the
        stage's project and waits."""
        role = self._caller(stage)

        def build(name: str, command: str, minutes: int) -> pipelines.CodeBuildStep:
            return pipelines.CodeBuildStep(
                f"{stage.name.capitalize()}{name.capitalize()}",
                input=self._source,
                install_commands=list(plan.PREPARE),
                commands=["scripts/setup", command],
                role=role,
                timeout=cdk.Duration.minutes(minutes),
            )

        after = [build(step.name, plan.start_command(stage, step), step.waiting_minutes) for step in wanted]
        for earlier, later in pairwise(after):
            later.add_step_dependency(earlier)
        return [build("clear", plan.clear_command(stage), AROUND_MINUTES), *after]

    def _caller(self, stage: StageConfiguration) -> iam.Role:
        role = iam.Role(
            self,
            f"{stage.name.capitalize()}StepsRole",
            role_name=self._configuration.caller_role(stage),
            assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"),
        )
        starter = f"arn:{cdk.Aws.PARTITION}:iam::{stage.account}:role/{stage.starter_role}"
        for sid, assumed in (("StartSteps", starter), ("DeleteEmptyStacks", plan.clear_role(stage))):
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=["sts:AssumeRole"], resources=[assumed]))
        _acknowledge(role, "/Build/")
        return role


def _acknowledge(role: iam.Role, path: str) -> None:
    """What CDK grants a role of the pipeline, by what it does there."""
    if re.search(r"/(Pipeline/Role$|Source/|Build/|UpdatePipeline/|Assets/)", path):
        artifacts = "CDK's grant on the one bucket and key of the pipeline's artifacts, whose keys are not known beforehand"
        names = r"Action::(s3|kms):.*\*", r"Resource::<Artifacts\w*\.Arn>/\*"
        acknowledge(role, "IAM5", artifacts, *names)
    if "/Build/" in path or "/UpdatePipeline/" in path:
        acknowledge(role, "IAM5", OWN_LOGS, BUILD_LOGS)
        reports = "CDK lets a pipeline's builds publish test reports; the group belongs to the build"
        acknowledge(role, "IAM5", reports, r"Resource::arn:aws:codebuild:.*:report-group/<.*>-\*")
    if "/UpdatePipeline/" in path:
        deploys = (
            "a condition admits roles that carry the tag of the bootstrap, in the pipeline's own account"
        )
        acknowledge(role, "IAM5", deploys, r"Resource::arn:\*:iam::\d{12}:role/\*")
        reads = "CDK reads the state of its own stack and whether the bucket of the bootstrap exists"
        acknowledge(role, "IAM5", reads, r"Resource::\*")
    if "/Assets/" in path:
        builds = "CDK lets publishing see, start and stop builds; a statement beside it denies the last two"
        acknowledge(role, "IAM5", builds, r"Resource::\*")
        logs = "one role publishes all assets, and CDK names their logs when it knows how many there are"
        groups = r"Resource::arn:aws:(logs|codebuild):.*:(log-group:/aws/codebuild|report-group)/\*"
        acknowledge(role, "IAM5", logs, groups)
