"""What runs in the cluster: the Neuron driver, then the manifests that were reviewed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_eks_v2 as eks

from cdk8s_charts.placeholders import fill
from infra.configuration import ROOT
from infra.constructs.kubectl_access import KubectlAccess
from infra.constructs.neuron_software import NeuronSoftware
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from aws_cdk import aws_ec2 as ec2
    from constructs import Construct

    from cdk8s_charts.manifest_file import ManifestFile
    from experiment import Experiment
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
        values = {"AWS_ACCOUNT": cdk.Aws.ACCOUNT_ID, "BENCHMARK_IMAGE": self._benchmark_image()}
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

    def _benchmark_image(self) -> str:
        """Built and pushed by `cdk deploy`, tagged with the hash of its sources."""
        image = ecr_assets.DockerImageAsset(
            self,
            "BenchmarkImage",
            directory=str(ROOT / "benchmark"),
            platform=ecr_assets.Platform.LINUX_AMD64,
            exclude=["**/__pycache__"],
        )
        return image.image_uri
