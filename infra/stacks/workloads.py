"""Workloads of the cluster: the Neuron driver, then the reviewed manifests, which CloudFormation applies with kubectl. Also the images
that are built from this repository: their placeholders in the manifests, their sources, and how CodeBuild builds them for
deployments from a machine without Docker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct

from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, names_in, tags_in_names
from experiment import Experiment
from infra import ROOT
from infra.deployment_file import DeploymentSettings
from infra.stacks.experiment_stack import SOURCE, ExperimentStack, acknowledge, acknowledge_each, allow
from infra.stacks.software import install_neuron_software


class KubectlAccess(Construct):
    """A Lambda function with kubectl and Helm in the private subnets that administers the cluster.

    kubectl 1.35 supports clusters from 1.34 to 1.36 (https://kubernetes.io/releases/version-skew-policy/#kubectl). The access
    entry must be sufficient, and in force before the first manifest is applied. Not verified on AWS.
    """

    def __init__(self, scope: Construct, construct_id: str, *, cluster: eks.ICluster, vpc: ec2.IVpc) -> None:
        super().__init__(scope, construct_id)
        provider = eks.KubectlProvider(
            self,
            "Provider",
            cluster=cluster,
            kubectl_layer=KubectlV35Layer(self, "Kubectl"),
            private_subnets=vpc.private_subnets,
        )
        policies_reason = "the kubectl provider is CDK's construct, which gives its functions these policies"
        acknowledge(
            provider,
            "IAM4",
            policies_reason,
            ".*/service-role/AWSLambda(Basic|VPCAccess)ExecutionRole",
            ".*/AmazonEC2ContainerRegistryReadOnly",
            ".*/AmazonElasticContainerRegistryPublicReadOnly.*",
        )
        versions_reason = "CDK's provider framework may call any version of the one function that it wraps"
        acknowledge(provider, "IAM5", versions_reason, r"Resource::.*Handler.*:\*")
        acknowledge(provider, "L1", "the runtime is chosen by the CDK release that brings the handler's code")
        role = provider.role
        assert role is not None, "only an imported provider may lack its role"
        self.entry = eks.AccessEntry(
            self,
            "Entry",
            cluster=cluster,
            principal=role.role_arn,
            access_policies=[
                eks.AccessPolicy.from_access_policy_name(
                    "AmazonEKSClusterAdminPolicy", access_scope_type=eks.AccessScopeType.CLUSTER
                )
            ],
        )
        """Manifests are applied after the access entry exists, and removed before it is deleted."""
        self.cluster = eks.Cluster.from_cluster_attributes(
            self, "Cluster", cluster_name=cluster.cluster_name, kubectl_provider=provider
        )
        """Software is installed in the cluster through this access."""
        self._common_properties = {"ClusterName": cluster.cluster_name, "Overwrite": True}
        self._token = provider.service_token

    def apply(self, scope: Construct, construct_id: str, objects: list[dict[str, Any]]) -> Construct:
        """Apply objects like `eks.KubernetesManifest`, but pass them as one text, which takes a tenth of the time. Nothing is
        pruned, because pruning adds a label to every object, and exactly the reviewed objects are applied.

        `Overwrite` makes the first call an `apply` too, so that an interrupted deployment can be repeated.
        """
        applied = Construct(scope, construct_id)
        text = json.dumps(objects, ensure_ascii=False, separators=(",", ":"))
        cdk.CustomResource(
            applied,
            "Resource",
            resource_type="Custom::AWSCDK-EKS-KubernetesResource",
            service_token=self._token,
            properties={"Manifest": text, **self._common_properties},
        )
        return applied


class WorkloadsStack(ExperimentStack):
    """Applies the reviewed manifests, file by file, with only the placeholders filled in."""

    def __init__(
        self,
        scope: Construct,
        *,
        experiment: Experiment,
        settings: DeploymentSettings,
        files: tuple[ManifestFile, ...],
        cluster: eks.ICluster,
        made: ec2.IVpc | None,
    ) -> None:
        super().__init__(
            scope, "workloads", "Neuron driver and workloads", experiment=experiment, settings=settings
        )
        access = KubectlAccess(self, "Access", cluster=cluster, vpc=self.network(made))
        applied = install_neuron_software(self, experiment=experiment, cluster=access.cluster)
        applied.node.add_dependency(access.entry)
        # A placeholder that no object of this experiment names may stay empty.
        values = dict.fromkeys(PLACEHOLDERS, "") | self._images(files) | {"AWS_ACCOUNT": cdk.Aws.ACCOUNT_ID}
        for file in files:
            earlier = applied
            applied = access.apply(self, file.name.removesuffix(".yaml"), fill(file.objects, values))
            applied.node.add_dependency(access.entry, earlier)

    def _images(self, files: tuple[ManifestFile, ...]) -> dict[str, str]:
        """The addresses of the images that the manifests name, tagged with the hash of their sources: built and pushed
        by `cdk deploy` itself, or by CodeBuild while it waits. And what replaces these tags in names."""
        build = self._docker_image
        if self.settings.build_images == "codebuild":
            build = ImageBuilder(self, "Images").image
        built = {image.placeholder: build(image) for image in images_in(files)}
        # Of an address only the tag is known here: the account and the region come with the deployment.
        tags = tags_in_names({name: tag for name, (_, tag) in built.items()})
        return {name: address for name, (address, _) in built.items()} | tags

    def _docker_image(self, image: Image) -> tuple[str, str]:
        asset = ecr_assets.DockerImageAsset(
            self,
            image.construct_id,
            directory=str(ROOT),
            file=image.dockerfile,
            platform=ecr_assets.Platform.LINUX_AMD64,
            exclude=image.exclude,
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        return asset.image_uri, asset.image_tag


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

    The sources are an asset, and the image's tag is their hash, so unchanged sources build nothing. Each image has its own
    repository, which keeps its newest versions; in a shared one, versions of another image would push out the one in use.
    Not verified on AWS.

    CDK's modules are imported where they are used, because most deployments do not need them.
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
        acknowledge_each(
            project,
            "IAM5",
            (SOURCE, r"Action::s3:.*\*"),
            ("logging in to the registry knows no resource", r"Resource::\*"),
            ("the sources of one asset, and the streams of the project's own log group", r"Resource::.+\*"),
        )
        reason = "the project stores nothing; its result is an image, which the registry encrypts"
        acknowledge(project, "CB4", reason)
        return project

    def _starter(
        self, image: Image, project: cdk.aws_codebuild.Project, repository: cdk.aws_ecr.Repository
    ) -> lambda_.Function:
        """Create one function per project, so that each can start and see only its own builds."""
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
