"""Whether the region offers what this release pins: node images, add-ons, charts. A pin that is gone fails a deployment
after half an hour of making a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.node_images import images_of
from experiment.finding import Finding, finding, fine
from infra.pins import ADDON_VERSIONS
from infra.settings import Settings

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws


def node_images(experiment: Experiment, aws: Aws) -> Finding:
    """The images of both node groups, by the names that Amazon publishes them under
    (https://github.com/awslabs/amazon-eks-ami/releases)."""
    version, chosen = experiment.cluster.kubernetes, experiment.node_image
    assert chosen is not None, "experiments without Neuron devices are not deployed"
    images = {"neuron": chosen, "standard": images_of(version)[0]}
    names = {
        f"amazon-eks-node-al2023-x86_64-{variant}-{version}-v{image.date}"
        for variant, image in images.items()
    }
    answer = aws.client("ec2").describe_images(
        Owners=["amazon"], Filters=[{"Name": "name", "Values": sorted(names)}]
    )
    missing = names - {image["Name"] for image in answer["Images"]}
    if not missing:
        return fine("node images", f"release {chosen.release} with Neuron driver {chosen.neuron_driver}")
    return finding(
        "node images",
        f"{aws.region} has no {', '.join(sorted(missing))}",
        "pin a release in experiment/catalogue/node_images.py that the region offers and whose driver serves the "
        f"runtimes: `aws ec2 describe-images --owners amazon --region {aws.region} --filters "
        f"Name=name,Values='amazon-eks-node-al2023-x86_64-neuron-{version}-*' --query 'Images[].Name'`; the driver "
        "stands in https://github.com/awslabs/amazon-eks-ami/releases",
    )


def addons(experiment: Experiment, aws: Aws) -> Finding:
    """The pinned versions of the managed add-ons."""
    version = experiment.cluster.kubernetes
    wrong = []
    for name, pinned in sorted(ADDON_VERSIONS.get(version, {}).items()):
        offered = [
            one["addonVersion"]
            for entry in aws.client("eks").every(
                "describe_addon_versions", "addons", kubernetesVersion=version, addonName=name
            )
            for one in entry.get("addonVersions", ())
        ]
        if pinned not in offered:
            wrong.append(f"{name} {pinned} (newest: {offered[0] if offered else 'none at all'})")
    if not wrong:
        return fine("add-ons", f"all pinned versions are offered for {version}")
    return finding(
        "add-ons",
        f"EKS {version} in {aws.region} does not offer {', '.join(wrong)}",
        "pin an offered version in infra/pins.py, test, review",
    )


def charts() -> tuple[str, ...]:
    """Charts in OCI registries, which are asked for as images are."""
    chart = Settings().neuron_chart
    return (f"{chart.repository.removeprefix('oci://')}:{chart.version}",)
