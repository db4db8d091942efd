"""The build of pull requests: the README's test command, then the review."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs.kept_logs import log_group
from infra.pipeline.steps import PULL_REQUEST, RUNTIMES

if TYPE_CHECKING:
    from infra.pipeline.configuration import PipelineConfiguration


class PullRequestChecks(Construct):
    """Runs code that nobody has reviewed, so its role can write a log and fetch the code, nothing else.

    To fetch, the role may read the token of a connection, and so may the code. Therefore the connection is not the
    pipeline's, and the build waits for an administrator of the repository, who could do all that the token can: a comment
    names the commit that may be built. CodeBuild builds what an approver proposes without a comment
    (https://docs.aws.amazon.com/codebuild/latest/userguide/pull-request-build-policy.html).
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, configuration: PipelineConfiguration, log_days: int
    ) -> None:
        super().__init__(scope, construct_id)
        owner, repository = configuration.repository.split("/")
        logs = log_group(self, "Logs", days=log_days)
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
            build_spec=codebuild.BuildSpec.from_object(
                {
                    "version": "0.2",
                    "phases": {**RUNTIMES["phases"], "build": {"commands": list(PULL_REQUEST)}},
                }
            ),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0, compute_type=codebuild.ComputeType.MEDIUM
            ),
            timeout=cdk.Duration.hours(1),
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=logs)),
            grant_report_group_permissions=False,
        )
        self._connect(project, configuration.pull_request_connection)

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
