"""Artifacts that no arm has any more, in moto's S3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from experiment import Experiment
from experiment.naming import STALE_TAG, artifact_path, bucket
from operations.cloud import markers
from operations.cloud.aws import Aws
from tests.operations.api_server import ApiServer
from tests.operations.world import World

Tagged = Callable[[], set[str]]


@pytest.fixture
def world(experiment: Experiment, aws: Aws) -> World:
    """Both arms compiled, and one artifact of long ago."""
    world = World(experiment, ApiServer())
    world.deploy()
    for folder in (*(artifact_path(arm) for arm in experiment.arms), "0ld"):
        for name in ("COMPLETE", "model.pt", "weights/tp0.safetensors"):
            world.store("artifacts", f"{folder}/{name}", {})
    return world


@pytest.fixture
def tagged(world: World, aws: Aws) -> Tagged:
    """Objects that the lifecycle rule lets go."""

    def found() -> set[str]:
        s3, name = world.client("s3"), bucket(world.experiment, "artifacts", aws.account)
        wanted = dict(zip(("Key", "Value"), STALE_TAG, strict=True))
        return {
            key
            for key in world.stored("artifacts")
            if wanted in s3.get_object_tagging(Bucket=name, Key=key)["TagSet"]
        }

    return found


def test_what_no_arm_has_is_tagged_wholly_and_freed_again(world: World, aws: Aws, tagged: Tagged) -> None:
    for _ in range(2):
        assert markers.mark(world.experiment, aws) == ["0ld"]
        assert tagged() == {"0ld/COMPLETE", "0ld/model.pt", "0ld/weights/tp0.safetensors"}
    treatment = artifact_path(world.experiment.arms[1])
    without = replace(world.experiment, arms=world.experiment.arms[:1])
    assert treatment in markers.mark(without, aws)
    assert markers.free(world.experiment, aws) == [treatment]
    assert {key.split("/")[0] for key in tagged()} == {"0ld"}
    assert markers.free(world.experiment, aws) == []


def test_a_folder_that_was_freed_half_is_freed_wholly_the_next_time(
    world: World, aws: Aws, tagged: Tagged, monkeypatch: pytest.MonkeyPatch
) -> None:
    treatment = artifact_path(world.experiment.arms[1])
    markers.mark(replace(world.experiment, arms=world.experiment.arms[:1]), aws)
    client, calls = aws.client("s3"), []
    free = client.delete_object_tagging

    def killed(**parameters: str) -> None:
        calls.append(parameters["Key"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        free(**parameters)

    with monkeypatch.context() as patch:
        patch.setitem(client.__dict__, "delete_object_tagging", killed)
        with pytest.raises(KeyboardInterrupt):
            markers.free(world.experiment, aws)
    assert f"{treatment}/COMPLETE" in tagged()
    markers.free(world.experiment, aws)
    assert {key.split("/")[0] for key in tagged()} == {"0ld"}
