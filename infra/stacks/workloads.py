"""Workloads of the cluster: the Neuron driver, then the reviewed manifests, which CloudFormation applies with kubectl. Also the images
that are built from this repository: their placeholders in the manifests, and their sources."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_eks_v2 as eks
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct

from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, names_in
from infra.stacks.experiment_stack import ExperimentStack, StackOfCluster
from infra.stacks.software import KUBECTL_TIMEOUT_S, install_neuron_software
from trnspec.core.checkout import ROOT


class KubectlAccess(Construct):
    """A Lambda function with kubectl and Helm in the private subnets that administers the cluster.

    kubectl 1.35 supports clusters from 1.34 to 1.36 (https://kubernetes.io/releases/version-skew-policy/#kubectl). The access
    entry must be sufficient, and in force before the first manifest is applied. Not verified on AWS.
    """

    def __init__(self, scope: Construct, construct_id: str, control: StackOfCluster) -> None:
        super().__init__(scope, construct_id)
        cluster = control.cluster
        provider = eks.KubectlProvider(
            self,
            "Provider",
            cluster=cluster,
            kubectl_layer=KubectlV35Layer(self, "Kubectl"),
            private_subnets=control.vpc.private_subnets,
        )
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
            service_timeout=cdk.Duration.seconds(KUBECTL_TIMEOUT_S),
            properties={"Manifest": text, **self._common_properties},
        )
        return applied


class WorkloadsStack(ExperimentStack):
    """Applies the reviewed manifests but their Jobs, file by file, with only the placeholders filled in."""

    def __init__(self, scope: Construct, control: StackOfCluster) -> None:
        super().__init__(scope, "workloads", "Neuron driver and workloads", control.deployed)
        access, files = KubectlAccess(self, "Access", control), self.deployed.files
        applied = install_neuron_software(self, experiment=self.experiment, cluster=access.cluster)
        applied.node.add_dependency(access.entry)
        # A placeholder that no object of this experiment names may stay empty.
        values = dict.fromkeys(PLACEHOLDERS, "") | self._images(files) | {"AWS_ACCOUNT": cdk.Aws.ACCOUNT_ID}
        for file in files:
            if not (standing := [item for item in file.objects if item["kind"] != "Job"]):
                continue
            earlier = applied
            applied = access.apply(self, file.name.removesuffix(".yaml"), fill(standing, values))
            applied.node.add_dependency(access.entry, earlier)

    def _images(self, files: tuple[ManifestFile, ...]) -> dict[str, str]:
        """Return the addresses of the images that the manifests name, tagged with the hash of their sources."""
        assets = {
            image.placeholder: ecr_assets.DockerImageAsset(
                self,
                image.construct_id,
                directory=str(ROOT),
                file=image.dockerfile,
                platform=ecr_assets.Platform.LINUX_AMD64,
                exclude=image.exclude,
                ignore_mode=cdk.IgnoreMode.DOCKER,
            )
            for image in images_in(files)
        }
        return {name: asset.image_uri for name, asset in assets.items()}


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
        """Everything else, as in a .dockerignore, so that only a change of these files gives a new tag."""
        kept = [f"!{path}" for path in (self.dockerfile, *self.sources)]
        return ["*", *kept, "**/__pycache__"]


IMAGES = (
    Image(
        placeholder="BENCHMARK_IMAGE",
        construct_id="BenchmarkImage",
        dockerfile="images/tools/Dockerfile",
        sources=(
            "images/tools/requirements.txt",
            "src/trnspec/__init__.py",
            *(f"src/trnspec/{room}" for room in ("core", "benchmark", "store")),
        ),
    ),
    Image(
        placeholder="LMEVAL_IMAGE",
        construct_id="LmEvalImage",
        dockerfile="images/lmeval/Dockerfile",
        sources=("images/lmeval/requirements.txt", "images/lmeval/questions.py"),
    ),
)


def images_in(files: Iterable[ManifestFile]) -> tuple[Image, ...]:
    """Return the images that the manifests of an experiment name."""
    named = set().union(*(names_in(file.objects) for file in files))
    return tuple(image for image in IMAGES if image.placeholder in named)
