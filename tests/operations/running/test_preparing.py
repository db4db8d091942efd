"""The step in which the images are asked: a refusal ends the run before a node starts, silence is a warning."""

from __future__ import annotations

import json

from cdk8s_charts.in_image import CANNOT_SAY, REFUSED
from cdk8s_charts.workloads.proofs import ARGUMENTS_DEADLINE_S
from operations.running.steps import carry_out
from tests.operations.driver import Driver


def _says(driver: Driver, *lines: dict[str, str], code: int) -> None:
    noise = "INFO 11-22 platform: no Neuron device"
    driver.world.failing = {"arguments-": "\n".join([noise, *map(json.dumps, lines)])}
    driver.world.exits = {"arguments-": code}


def _nodes_started(driver: Driver) -> list[int]:
    seen: list[int] = []
    driver.world.on_tick.append(lambda: seen.append(driver.world.nodes))
    return seen


def test_the_images_are_asked_before_anything_else(driver: Driver) -> None:
    driver.run()
    said = "\n".join(driver.said)
    assert said.index("takes the arguments of its arms") < said.index("fetch weights")


def test_a_refusal_is_one_line_with_arm_key_and_reason_and_no_node_starts(driver: Driver) -> None:
    first = {"arm": "qwen-sd-vllm", "key": "--override-neuron-config", "why": "not KEY=VALUE"}
    _says(driver, first, {**first, "arm": "qwen-vllm"}, code=REFUSED)
    nodes = _nodes_started(driver)
    line = driver.line()
    assert "arm qwen-sd-vllm: " in line
    assert (
        "refuses --override-neuron-config: not KEY=VALUE (1 more: scripts/kubectl logs job/arguments-" in line
    )
    assert "\n" not in line
    assert set(nodes) == {0}
    driver.world.failing = {}
    driver.run()


def test_an_image_that_cannot_be_asked_without_a_device_is_a_warning(driver: Driver) -> None:
    _says(driver, {"part": "neuron config", "why": "no NeuronConfig in this image"}, code=CANNOT_SAY)
    driver.run()
    (warning,) = (line for line in driver.said if "warning" in line)
    assert "cannot be asked here (neuron config: no NeuronConfig in this image)" in warning


def test_what_looks_like_a_refusal_in_a_program_that_broke_is_none(driver: Driver) -> None:
    _says(driver, {"arm": "a", "key": "b", "why": "c"}, code=137)
    driver.run()
    assert any("warning" in line and "cannot be asked here" in line for line in driver.said)


def test_an_image_that_is_never_pulled_costs_patience_and_nothing_else(driver: Driver) -> None:
    driver.world.unplaced = {"arguments-": "0/2 nodes are available: 2 Insufficient ephemeral-storage"}
    begun = driver.clock.now()
    driver.run()
    assert any("warning" in line and "Insufficient ephemeral-storage" in line for line in driver.said)
    assert (driver.clock.now() - begun).total_seconds() > ARGUMENTS_DEADLINE_S


def test_without_verify_no_image_is_asked(driver: Driver) -> None:
    _says(driver, {"arm": "a", "key": "b", "why": "c"}, code=REFUSED)
    context = driver.context()
    context.verify = None
    carry_out(context, keep_nodes=False)
    assert any("no image is asked" in line for line in driver.said)
