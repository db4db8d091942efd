"""What runs in the cluster: the Neuron driver, then the manifests that were reviewed; and how CloudFormation reaches into it."""

from __future__ import annotations

import json
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_eks_v2 as eks
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct

from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, output_of, tags_in_names
from experiment import Experiment
from infra import ROOT
from infra.deployment_file import Lasting
from infra.stacks.experiment_stack import ExperimentStack, acknowledge
from infra.stacks.images import Image, ImageBuilder, images_in
from infra.stacks.software import install_autoscaling, install_neuron_software


class KubectlAccess(Construct):
    """A Lambda with kubectl and Helm in the private subnets, administrator of the cluster, and the cluster seen
    through it.

    kubectl 1.35 talks to 1.34 up to 1.36 (https://kubernetes.io/releases/version-skew-policy/#kubectl). That the access
    entry suffices and is in force when the first manifest comes is not run on AWS.
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
        functions = "the kubectl provider is CDK's construct, which gives its functions these policies"
        acknowledge(
            provider,
            "IAM4",
            functions,
            ".*/service-role/AWSLambda(Basic|VPCAccess)ExecutionRole",
            ".*/AmazonEC2ContainerRegistryReadOnly",
            ".*/AmazonElasticContainerRegistryPublicReadOnly.*",
        )
        versions = "CDK's provider framework may call any version of the one function that it wraps"
        acknowledge(provider, "IAM5", versions, r"Resource::.*Handler.*:\*")
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
        """Manifests are applied after it, and removed before it."""
        self.cluster = eks.Cluster.from_cluster_attributes(
            self, "Cluster", cluster_name=cluster.cluster_name, kubectl_provider=provider
        )
        """What is installed in it goes through this access."""
        self._said = {"ClusterName": cluster.cluster_name, "Overwrite": True}
        self._token = provider.service_token

    def apply(self, scope: Construct, construct_id: str, objects: list[dict[str, Any]]) -> Construct:
        """As `eks.KubernetesManifest`, which takes the objects one by one where here they are a text: that takes a tenth of the
        time. Nothing is pruned, which would put a label on every object; what is applied is what was reviewed.

        `apply` also the first time (`Overwrite`), so that an interrupted deployment can be repeated.
        """
        applied = Construct(scope, construct_id)
        text = json.dumps(objects, ensure_ascii=False, separators=(",", ":"))
        cdk.CustomResource(
            applied,
            "Resource",
            resource_type="Custom::AWSCDK-EKS-KubernetesResource",
            service_token=self._token,
            properties={"Manifest": text, **self._said},
        )
        return applied


class WorkloadsStack(ExperimentStack):
    """Applies the reviewed manifests, file by file; only the placeholders are filled in.

    With `workloads: gitops` its outputs say what fills them, and only drivers, KEDA and images come with it: the objects are applied
    from a repository of the team's own, and two owners of one object would undo each other's work. Where the cluster has
    those drivers, nothing of ours gets into it.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        experiment: Experiment,
        lasting: Lasting,
        files: tuple[ManifestFile, ...],
        cluster: eks.ICluster | None,
        made: ec2.IVpc | None,
    ) -> None:
        super().__init__(
            scope, "workloads", "Neuron driver and workloads", experiment=experiment, lasting=lasting
        )
        vpc, brings, serve = self.network(made), experiment.cluster.brings, experiment.serve
        gitops, neuron = lasting.workloads == "gitops", brings("neuron")
        scales = serve is not None and serve.scales and brings("keda")
        if gitops and not (neuron or scales):
            self._output_images(files)
            cdk.CfnWaitConditionHandle(self, "Nothing")  # CloudFormation takes no stack without a resource
            return
        access = KubectlAccess(self, "Access", cluster=self.cluster_of(cluster, vpc), vpc=vpc)
        applied: Construct = access.entry
        if neuron:
            applied = install_neuron_software(self, experiment=experiment, cluster=access.cluster)
            applied.node.add_dependency(access.entry)
        if scales:
            driver = applied
            applied = install_autoscaling(self, experiment=experiment, cluster=access.cluster)
            applied.node.add_dependency(access.entry, driver)
        if gitops:
            self._output_images(files)
            return
        # A placeholder that no object of this experiment names may stay empty.
        values = dict.fromkeys(PLACEHOLDERS, "") | self._images(files) | {"AWS_ACCOUNT": cdk.Aws.ACCOUNT_ID}
        for file in files:
            earlier = applied
            applied = access.apply(self, file.name.removesuffix(".yaml"), fill(file.objects, values))
            applied.node.add_dependency(access.entry, earlier)

    def _output_images(self, files: tuple[ManifestFile, ...]) -> None:
        """The addresses of the images, for who applies the manifests."""
        images = self._images(files)
        for image in images_in(files):
            cdk.CfnOutput(self, output_of(image.placeholder), value=images[image.placeholder])

    def _images(self, files: tuple[ManifestFile, ...]) -> dict[str, str]:
        """The addresses of the images that the manifests name, tagged with the hash of their sources: built and pushed
        by `cdk deploy` itself, or by CodeBuild while it waits. And what replaces these tags in names."""
        build = self._docker_image
        if self.lasting.build_images == "codebuild":
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
