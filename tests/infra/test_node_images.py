from __future__ import annotations

from dataclasses import replace

import pytest

from experiment import Experiment
from experiment.checks.cluster import NEWEST_KUBERNETES, OLDEST_KUBERNETES
from infra.errors import InfraError
from infra.node_images import NODE_IMAGES, OLDEST_FOR_CLAIMS, check_driver, node_image, version


def test_every_version_that_an_experiment_may_name_has_an_image_of_that_version() -> None:
    allowed = range(OLDEST_KUBERNETES[1], NEWEST_KUBERNETES[1] + 1)
    assert set(NODE_IMAGES) == {f"1.{minor}" for minor in allowed}
    assert all(image.release.startswith(f"{name}.") for name, image in NODE_IMAGES.items())


def test_every_image_is_new_enough_for_resource_claims() -> None:
    assert all(version(image.release) >= OLDEST_FOR_CLAIMS for image in NODE_IMAGES.values())


def test_a_version_without_an_image_is_refused() -> None:
    with pytest.raises(InfraError, match=r"'1\.34': no node image is pinned for it; use 1\.35 or 1\.36"):
        node_image("1.34")


def test_the_driver_of_the_image_serves_the_reference_runtime(experiment: Experiment) -> None:
    check_driver(experiment)


@pytest.mark.parametrize(("oldest", "refused"), [("2.29.0.0", False), ("2.29.1", True), ("2.31.7.0", True)])
def test_a_runtime_that_needs_a_newer_driver_is_refused(
    experiment: Experiment, oldest: str, refused: bool
) -> None:
    runtime = replace(experiment.arms[1].runtime, oldest_driver=oldest)
    arms = (experiment.arms[0], replace(experiment.arms[1], runtime=runtime))
    needing = replace(experiment, arms=arms)
    if not refused:
        check_driver(needing)
        return
    with pytest.raises(
        InfraError, match=f"needs Neuron driver {oldest} or later, the node image .* has 2.29.0.0"
    ):
        check_driver(needing)
