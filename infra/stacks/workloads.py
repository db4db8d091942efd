"""What runs in the cluster: the Neuron driver, then the manifests that were reviewed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_eks_v2 as eks

from cdk8s_charts.placeholders import PLACEHOLDERS, fill, tags_in_names
from infra import ROOT
from infra.constructs.autoscaling import Autoscaling
from infra.constructs.kubectl_access import KubectlAccess
from infra.constructs.neuron_software import NeuronSoftware
from infra.images import images_in
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from aws_cdk import aws_ec2 as ec2
    from constructs import Construct

    from cdk8s_charts.manifest_file import ManifestFile
    from experiment import Experiment
    from infra.images import Image
    from infra.settings import Settings


class WorkloadsStack(ExperimentStack):
    """Applies the reviewed manifests, file by file; only the placeholders are filled in."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        experiment: Experiment,
        files: tuple[ManifestFile, ...],
        settings: Settings,
        cluster: eks.ICluster,
        vpc: ec2.Vpc,
        build_images: str,
    ) -> None:
        super().__init__(scope, part, experiment=experiment, description="Neuron driver and workloads")
        access = KubectlAccess(self, "Access", cluster=cluster, vpc=vpc, log_days=settings.log_days)
        previous: Construct = NeuronSoftware(
            self,
            "Neuron",
            cluster=access.cluster,
            settings=settings,
            allocation=experiment.baseline.serving.allocation,
        )
        access.admit(previous)
        if experiment.serve is not None and experiment.serve.scales:
            autoscaling = Autoscaling(
                self, "Autoscaling", experiment=experiment, cluster=access.cluster, settings=settings
            )
            access.admit(autoscaling)
            autoscaling.node.add_dependency(previous)
            previous = autoscaling
        # What no object of this experiment names may stay empty.
        values = dict.fromkeys(PLACEHOLDERS, "") | self._images(files, build_images, settings)
        values["AWS_ACCOUNT"] = cdk.Aws.ACCOUNT_ID
        for file in files:
            manifest = eks.KubernetesManifest(
                self,
                file.name.removesuffix(".yaml"),
                cluster=access.cluster,
                manifest=fill(file.objects, values),
                # Pruning would put a label on every object; what is applied is what was reviewed.
                prune=False,
                # `apply` also at first, so that a deployment that broke off halfway can be repeated.
                overwrite=True,
            )
            access.admit(manifest)
            manifest.node.add_dependency(previous)
            previous = manifest

    def _images(
        self, files: tuple[ManifestFile, ...], build_images: str, settings: Settings
    ) -> dict[str, str]:
        """The addresses of the images that the manifests name, tagged with the hash of their sources: built and pushed
        by `cdk deploy` itself, or by CodeBuild while it waits. And what stands for these tags in names."""
        wanted = images_in(files)
        if build_images == "codebuild":
            from infra.constructs.image_builder import ImageBuilder  # its modules cost a tenth of every synth

            builder = ImageBuilder(self, "Images", settings=settings)
            built = {image.placeholder: builder.image(image) for image in wanted}
        else:
            built = {image.placeholder: self._docker_image(image) for image in wanted}
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
