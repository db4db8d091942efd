"""Images from CodeBuild, for deployments from a machine without Docker."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from infra import ROOT, settings
from infra.constructs.acknowledged import SOURCE, acknowledge
from infra.constructs.images import Image

_ENDED = ["SUCCEEDED", "FAILED", "FAULT", "STOPPED", "TIMED_OUT"]
_BUILD = {
    "version": "0.2",
    "phases": {
        "pre_build": {
            "commands": [
                'aws ecr get-login-password | docker login --username AWS --password-stdin "${IMAGE_URI%%/*}"'
            ]
        },
        "build": {
            "commands": ['docker build --platform linux/amd64 --file "$DOCKERFILE" --tag "$IMAGE_URI" .']
        },
        "post_build": {
            # This phase also runs after a failed build, and must not push then.
            "commands": ['test "$CODEBUILD_BUILD_SUCCEEDING" = 1', 'docker push "$IMAGE_URI"']
        },
    },
}


class ImageBuilder(Construct):
    """A repository, a CodeBuild project and a function for each image, which is a custom resource.

    Sources travel as an asset; the image's tag is the hash of them, so unchanged sources build nothing. A repository keeps
    its newest images, and holds one image's versions alone: versions of another would count, and push out the one in use.
    Not run on AWS.
    """

    def image(self, image: Image) -> tuple[str, str]:
        """The address of the image in the repository, available once it is built, and its tag."""
        source = s3_assets.Asset(
            self,
            f"{image.construct_id}Source",
            path=str(ROOT),
            exclude=image.exclude,
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        repository = self._repository(image)
        project = self._project(image, source, repository)
        resource = cdk.CustomResource(
            self,
            image.construct_id,
            resource_type="Custom::ContainerImage",
            service_token=self._function(project, image, repository).function_arn,
            service_timeout=cdk.Duration.hours(1),
            properties={
                "Project": project.project_name,
                "Repository": repository.repository_name,
                "Tag": source.asset_hash,
                "Uri": repository.repository_uri_for_tag(source.asset_hash),
            },
        )
        return resource.get_att_string("Uri"), source.asset_hash

    def _repository(self, image: Image) -> ecr.Repository:
        return ecr.Repository(
            self,
            f"{image.construct_id}Repository",
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[ecr.LifecycleRule(max_image_count=settings.KEPT_IMAGES)],
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
        )

    def _project(
        self, image: Image, source: s3_assets.Asset, repository: ecr.Repository
    ) -> codebuild.Project:
        group = logs.LogGroup(self, f"{image.construct_id}BuildLogs")
        project = codebuild.Project(
            self,
            f"{image.construct_id}Project",
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_object(_BUILD),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                compute_type=codebuild.ComputeType.MEDIUM,
                privileged=True,  # Docker inside the build needs it
            ),
            environment_variables={
                "DOCKERFILE": codebuild.BuildEnvironmentVariable(value=image.dockerfile),
            },
            timeout=cdk.Duration.minutes(50),  # before CloudFormation gives up
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=group)),
            grant_report_group_permissions=False,
        )
        repository.grant_pull_push(project)
        acknowledge(project, "IAM5", SOURCE, r"Action::s3:.*\*")
        acknowledge(project, "IAM5", "logging in to the registry knows no resource", r"Resource::\*")
        own = "the sources of one asset, and the streams of the project's own log group"
        acknowledge(project, "IAM5", own, r"Resource::.+\*")
        acknowledge(
            project, "CB4", "the project stores nothing; its result is an image, which the registry encrypts"
        )
        return project

    def _function(
        self, project: codebuild.Project, image: Image, repository: ecr.Repository
    ) -> lambda_.Function:
        """A function a project, so that each may start and see its own builds only."""
        group = logs.LogGroup(self, f"{image.construct_id}StarterLogs")
        function = lambda_.Function(
            self,
            f"{image.construct_id}Starter",
            description=f"builds {image.placeholder} for CloudFormation",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="build_image.handle",
            code=lambda_.Code.from_asset(str(ROOT / "infra" / "handlers"), exclude=["__pycache__"]),
            timeout=cdk.Duration.seconds(30),
            log_group=group,
            role=self._starter_role(project, image, repository, group),
        )
        project.on_state_change(
            f"{image.construct_id}Ended",
            target=targets.LambdaFunction(function),
            event_pattern=events.EventPattern(detail={"build-status": _ENDED}),
        )
        return function

    def _starter_role(
        self, project: codebuild.Project, image: Image, repository: ecr.Repository, group: logs.LogGroup
    ) -> iam.Role:
        rights = (
            (["logs:CreateLogStream", "logs:PutLogEvents"], group.log_group_arn),
            (["codebuild:StartBuild", "codebuild:BatchGetBuilds"], project.project_arn),
            (["ecr:DescribeImages"], repository.repository_arn),
        )
        return iam.Role(
            self,
            f"{image.construct_id}StarterRole",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            inline_policies={
                "start": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(actions=actions, resources=[resource])
                        for actions, resource in rights
                    ]
                )
            },
        )
