"""The node image of an experiment: the newest whose Neuron driver the runtime of every arm takes, or a refusal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from experiment import InvalidExperiment, load
from experiment.__main__ import main
from experiment.catalogue import node_images
from experiment.catalogue.node_images import NODE_IMAGES, OLDEST_FOR_CLAIMS, images_of, serving_image
from experiment.catalogue.runtimes import RUNTIMES, Drivers, Runtime, version
from experiment.checks.cluster_section import NEWEST_KUBERNETES, OLDEST_KUBERNETES
from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import Edit, both, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Edit], Path]

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
ALLOWED = [f"1.{minor}" for minor in range(OLDEST_KUBERNETES[1], NEWEST_KUBERNETES[1] + 1)]
ON_DEVICES = [runtime for runtime in RUNTIMES.values() if not runtime.lab_only]


def test_every_version_that_an_experiment_may_name_has_images_of_that_version() -> None:
    assert {image.kubernetes for image in NODE_IMAGES} == set(ALLOWED)
    for image in NODE_IMAGES:
        assert image.release.startswith(f"{image.kubernetes}.")
        assert image.source.endswith(f"/tag/v{image.release[-8:]}")


def test_every_image_is_new_enough_for_resource_claims() -> None:
    assert all(version(image.release) >= OLDEST_FOR_CLAIMS for image in NODE_IMAGES)


@pytest.mark.parametrize("kubernetes", ALLOWED)
def test_images_stand_newest_first(kubernetes: str) -> None:
    images = images_of(kubernetes)
    assert [image.date for image in images] == sorted((image.date for image in images), reverse=True)
    assert images_of("1.34") == ()


@pytest.mark.parametrize("runtime", ON_DEVICES, ids=lambda runtime: runtime.name)
def test_a_runtime_has_the_bounds_that_its_library_documents(runtime: Runtime) -> None:
    """Driver 2.29 wants library 2.33 or later; library 2.32 wants driver 2.27 or later."""
    assert runtime.drivers is not None
    assert runtime.runtime_library is not None
    library = version(runtime.runtime_library)
    assert runtime.drivers.serve("2.29.0.0") == (library >= (2, 33))
    assert runtime.drivers.serve("2.26.10.0") == (library < (2, 32))
    assert "release notes" in runtime.drivers.source


@pytest.mark.parametrize(
    ("oldest", "newest", "driver", "serves"),
    [
        ("2.22", "2.28", "2.28.0.0", True),
        ("2.22", "2.28", "2.28.9.1", True),
        ("2.22", "2.28", "2.29.0.0", False),
        ("2.22", "2.28", "2.9.1.0", False),
        ("2.27", None, "2.31.7.0", True),
        ("2.27", None, "2.26.10.0", False),
        ("2.27.4", None, "2.27.4.0", True),
    ],
)
def test_a_driver_is_judged_by_both_bounds(
    oldest: str, newest: str | None, driver: str, serves: bool
) -> None:
    assert Drivers(oldest=oldest, newest=newest, source="").serve(driver) == serves


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_driver_of_a_shipped_experiment_serves_every_arm(path: Path) -> None:
    experiment = load(path)
    image = experiment.node_image
    if experiment.lab_only:
        assert image is None
        return
    assert image is not None
    for arm in experiment.arms:
        assert arm.runtime.drivers is not None
        assert arm.runtime.drivers.serve(image.neuron_driver), arm.name


@pytest.mark.parametrize("kubernetes", ALLOWED)
@pytest.mark.parametrize(
    ("names", "driver"),
    [
        (["nxdi-vllm-0.9.1"], "2.28.0.0"),
        (["native-vllm-0.29"], "2.29.0.0"),
        (["nxdi-vllm-0.16", "native-vllm-0.29"], "2.29.0.0"),
        (["native-vllm-0.29", "nxdi-vllm-0.9.1"], "2.28.0.0"),
    ],
)
def test_the_newest_image_is_taken_that_serves_all(kubernetes: str, names: list[str], driver: str) -> None:
    image = serving_image(kubernetes, [RUNTIMES[name] for name in names])
    assert image is not None
    assert (image.kubernetes, image.neuron_driver) == (kubernetes, driver)


def _without(monkeypatch: pytest.MonkeyPatch, *dropped: str) -> None:
    left = tuple(image for image in NODE_IMAGES if image.release not in dropped)
    monkeypatch.setattr(node_images, "NODE_IMAGES", left)


OLDER = [image.release for image in NODE_IMAGES if image.neuron_driver == "2.28.0.0"]


def test_a_runtime_that_no_image_serves_is_refused_with_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, *OLDER)
    with pytest.raises(InvalidExperiment) as caught:
        load(REFERENCE)
    (line,) = caught.value.lines
    assert line.endswith(
        "runtime = 'nxdi-vllm-0.9.1': no node image for Kubernetes 1.35 serves it: nxdi-vllm-0.9.1 takes driver "
        "2.22 to 2.28, the images have 2.29.0.0; use another runtime"
    )


def test_runtimes_that_no_image_serves_together_are_named(
    variation: Variation, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "1.35.6-20260625")
    mixed = both(
        put("runtime", "native-vllm-0.29"),
        put("serving.artifact_source", "scratch"),
        put("arms.1.runtime", "nxdi-vllm-0.9.1"),
    )
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(mixed))
    (line,) = caught.value.lines
    assert line.endswith(
        "arms[1].runtime = 'nxdi-vllm-0.9.1': no node image for Kubernetes 1.35 serves these runtimes: "
        "native-vllm-0.29 takes driver 2.27 or later, nxdi-vllm-0.9.1 takes driver 2.22 to 2.28, the images have "
        '2.29.0.0; set cluster.kubernetes to "1.36", or give each runtime an experiment of its own'
    )


def test_check_prints_the_image_its_driver_and_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "experiments" / "qwen3-32b-today.yaml")
    assert main(["check", path]) == 0
    shown = capsys.readouterr().out
    assert "  node image  1.35.6-20260625, Neuron driver 2.28.0.0\n" in shown
    assert "nxdi-vllm-0.9.1: vLLM 0.9.1, Neuron SDK 2.26.1, driver 2.22 to 2.28\n" in shown
    assert "native-vllm-0.29: vLLM 0.29.0, Neuron SDK 2.33.0, driver 2.27 or later\n" in shown
    assert main(["check", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["node_image"] == {
        "release": "1.35.6-20260625",
        "neuron_driver": "2.28.0.0",
        "source": "https://github.com/awslabs/amazon-eks-ami/releases/tag/v20260625",
    }
