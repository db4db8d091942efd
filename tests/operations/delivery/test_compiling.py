"""The pipeline's compilation: once for real on moto and an API server, its ends with steps made for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiment import Experiment
from experiment.finding import Refusal
from experiment.naming import artifact_path
from operations.cloud.aws import Aws
from operations.cloud.kubernetes import Kubernetes
from operations.delivery import compiling
from operations.delivery.compiling import PREPARING, compile_artifacts, nothing_to_compile
from operations.running import steps as engine
from operations.running.steps import steps
from tests.operations.api_server import ApiServer
from tests.operations.running.test_run import Driver
from tests.operations.world import World


@pytest.mark.slow
def test_every_artifact_is_made_and_no_node_is_left(
    experiment: Experiment, api: ApiServer, aws: Aws, cluster: Kubernetes, tmp_path: Path
) -> None:
    driver = Driver(World(experiment, api), aws, cluster, tmp_path / "results")
    compile_artifacts(driver.context(), fresh=True)
    markers = [key for key in driver.world.stored("artifacts") if key.endswith("/COMPLETE")]
    assert len(markers) == len(driver.world.experiment.arms)
    assert driver.world.nodes == 0
    assert driver.verified == 1
    assert driver.store.current() is None
    assert [item["spec"]["replicas"] for item in driver.world.api.of("deployments")] == [0, 0]


def test_where_every_artifact_is_there_no_node_starts_and_none_is_let_go(
    experiment: Experiment, account: None, aws: Aws
) -> None:
    world = World(experiment, ApiServer())
    world.deploy()
    said: list[str] = []
    assert not nothing_to_compile(experiment, aws, said.append)
    for arm in experiment.served_arms:
        world.store("artifacts", f"{artifact_path(arm)}/COMPLETE", {"key": artifact_path(arm)})
    assert nothing_to_compile(experiment, aws, said.append)
    assert world.stored("results") == {}, "no run was begun"
    name = f"qwen3-32b-artifacts-{aws.account}-us-east-2"
    stale_tag = {"TagSet": [{"Key": "lifecycle", "Value": "stale"}]}
    key = f"{artifact_path(experiment.baseline)}/COMPLETE"
    world.client("s3").put_object_tagging(Bucket=name, Key=key, Tagging=stale_tag)
    assert nothing_to_compile(experiment, aws, said.append)
    assert world.client("s3").get_object_tagging(Bucket=name, Key=key)["TagSet"] == []
    assert len(said) == 1


class Recorder:
    """Stands for a run's context: remembers what is saved, and whether it was finished."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.state = SimpleNamespace(nodes=0, id="r", step="compile", off_at="")
        self.store, self.held = self, "held"
        self.events: list[str] = []
        self.faked: list[SimpleNamespace] = []

    def say(self, line: str) -> None:
        pass

    def save(self, **changes: Any) -> None:
        self.events += [f"owner {changes['owner']!r}"] if "owner" in changes else []

    def record(self, held: str) -> str:
        self.events.append(f"finished {held}")
        return "s3://results/run.json"

    def make_room(self) -> None:
        pass


Act = Callable[[Recorder], None]


@pytest.fixture
def recorder(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Every step of a run only says its name; starting nodes makes them bill."""
    made = Recorder(experiment)

    def act(name: str) -> Act:
        def do(context: Recorder) -> None:
            context.events.append(name)
            context.state.nodes = 1 if name == "nodes" else context.state.nodes

        return do

    def off(context: Recorder) -> None:
        context.events.append("off")
        context.state.nodes = 0

    made.faked = [
        SimpleNamespace(name=step.name, title=step.title, act=act(step.name)) for step in steps(experiment)
    ]
    monkeypatch.setattr(compiling, "steps", lambda _: made.faked)
    for module in (compiling, engine):
        monkeypatch.setattr(module, "stop_paying", off)
    return made


def run(recorder: Recorder, *, fresh: bool) -> None:
    compile_artifacts(recorder, fresh=fresh)  # type: ignore[arg-type]  # it has what this calls


def test_the_steps_up_to_the_artifacts_are_taken_and_no_other(recorder: Recorder) -> None:
    run(recorder, fresh=True)
    assert recorder.events == [*PREPARING, "off", "finished held"]


@pytest.mark.parametrize("error", [Refusal("out of memory"), KeyboardInterrupt()])
def test_whatever_ends_it_the_nodes_go(recorder: Recorder, error: BaseException) -> None:
    def fail(_: Recorder) -> None:
        raise error

    next(step for step in recorder.faked if step.name == "compile").act = fail
    with pytest.raises(type(error)):
        run(recorder, fresh=True)
    assert "off" in recorder.events
    assert recorder.events[-1] in ("off", "owner ''"), "and the lock is released, where somebody may go on"
    assert recorder.state.nodes == 0


def test_a_run_that_somebody_left_unfinished_stays_to_be_finished(recorder: Recorder) -> None:
    run(recorder, fresh=False)
    assert recorder.events[-1] == "owner ''"
    assert "finished held" not in recorder.events
