"""Container images that are built from this repository: which placeholder of the manifests each fills, from what, and how CodeBuild
builds it for deployments from a machine without Docker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from cdk8s_charts.manifests import ManifestFile, names_in
from infra import ROOT
from infra.stacks.experiment_stack import SOURCE, acknowledge, allow

_KEPT = 10
"""In the repository of each image; the newest is in use. One that is gone is built again where a deployment, or its way back, asks
for it."""
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


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image; its build context is the repository, reduced to what its Dockerfile copies."""

    placeholder: str
    construct_id: str
    dockerfile: str
    """Path in the repository."""
    sources: tuple[str, ...]
    """Files and folders in the repository that the Dockerfile copies."""

    @property
    def exclude(self) -> list[str]:
        """Everything else, as a .dockerignore says it: so that only a change of these gives a new tag."""
        kept = [f"!{path}" for path in (self.dockerfile, *self.sources)]
        return ["*", *kept, "**/__pycache__"]


IMAGES = (
    Image(
        placeholder="BENCHMARK_IMAGE",
        construct_id="BenchmarkImage",
        dockerfile="images/tools/Dockerfile",
        sources=("images/tools/requirements.txt", "core", "benchmark", "store"),
    ),
    Image(
        placeholder="LMEVAL_IMAGE",
        construct_id="LmEvalImage",
        dockerfile="images/lmeval/Dockerfile",
        sources=("images/lmeval/requirements.txt", "images/lmeval/questions.py"),
    ),
)


def images_in(files: Iterable[ManifestFile]) -> tuple[Image, ...]:
    """The images that the manifests of an experiment name."""
    named = set().union(*(names_in(file.objects) for file in files))
    return tuple(image for image in IMAGES if image.placeholder in named)


class ImageBuilder(Construct):
    """A repository, a CodeBuild project and a function for each image, which is a custom resource.

    Sources travel as an asset; the image's tag is the hash of them, so unchanged sources build nothing. A repository keeps
    its newest images, and holds one image's versions alone: versions of another would count, and push out the one in use.
    Not run on AWS.

    CDK's modules for them are loaded where they are used: most deployments need none.
    """

    def image(self, image: Image) -> tuple[str, str]:
        """The address of the image in the repository, available once it is built, and its tag."""
        id_, ecr = image.construct_id, cdk.aws_ecr
        source = s3_assets.Asset(
            self, f"{id_}Source", path=str(ROOT), exclude=image.exclude, ignore_mode=cdk.IgnoreMode.DOCKER
        )
        repository = ecr.Repository(
            self,
            f"{id_}Repository",
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[ecr.LifecycleRule(max_image_count=_KEPT)],
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
        )
        project = self._project(image, source, repository)
        resource = cdk.CustomResource(
            self,
            id_,
            resource_type="Custom::ContainerImage",
            service_token=self._starter(image, project, repository).function_arn,
            service_timeout=cdk.Duration.hours(1),
            properties={
                "Project": project.project_name,
                "Repository": repository.repository_name,
                "Tag": source.asset_hash,
                "Uri": repository.repository_uri_for_tag(source.asset_hash),
            },
        )
        return resource.get_att_string("Uri"), source.asset_hash

    def _project(
        self, image: Image, source: s3_assets.Asset, repository: cdk.aws_ecr.Repository
    ) -> cdk.aws_codebuild.Project:
        codebuild = cdk.aws_codebuild
        group = logs.LogGroup(self, f"{image.construct_id}BuildLogs")
        dockerfile = codebuild.BuildEnvironmentVariable(value=image.dockerfile)
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
            environment_variables={"DOCKERFILE": dockerfile},
            timeout=cdk.Duration.minutes(50),  # before CloudFormation gives up
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=group)),
            grant_report_group_permissions=False,
        )
        repository.grant_pull_push(project)
        acknowledge(project, "IAM5", SOURCE, r"Action::s3:.*\*")
        acknowledge(project, "IAM5", "logging in to the registry knows no resource", r"Resource::\*")
        own = "the sources of one asset, and the streams of the project's own log group"
        acknowledge(project, "IAM5", own, r"Resource::.+\*")
        stored = "the project stores nothing; its result is an image, which the registry encrypts"
        acknowledge(project, "CB4", stored)
        return project

    def _starter(
        self, image: Image, project: cdk.aws_codebuild.Project, repository: cdk.aws_ecr.Repository
    ) -> lambda_.Function:
        """A function a project, so that each may start and see its own builds only."""
        id_, targets, events = image.construct_id, cdk.aws_events_targets, cdk.aws_events
        group = logs.LogGroup(self, f"{id_}StarterLogs")
        rights = (
            ("logs:CreateLogStream PutLogEvents", group.log_group_arn),
            ("codebuild:StartBuild BatchGetBuilds", project.project_arn),
            ("ecr:DescribeImages", repository.repository_arn),
        )
        statements = [allow(actions, resource) for actions, resource in rights]
        function = lambda_.Function(
            self,
            f"{id_}Starter",
            description=f"builds {image.placeholder} for CloudFormation",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="build_image.handle",
            code=lambda_.Code.from_asset(str(ROOT / "infra" / "handlers"), exclude=["__pycache__"]),
            timeout=cdk.Duration.seconds(30),
            log_group=group,
            role=iam.Role(
                self,
                f"{id_}StarterRole",
                assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
                inline_policies={"start": iam.PolicyDocument(statements=statements)},
            ),
        )
        project.on_state_change(
            f"{id_}Ended",
            target=targets.LambdaFunction(function),
            event_pattern=events.EventPattern(detail={"build-status": _ENDED}),
        )
        return function
