"""`./trnspec run`, again and again, on one world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.operations.api_server import ApiServer, DirectKubernetes
from tests.operations.clock import FakeClock
from tests.operations.world import World
from trnspec.core.findings import Finding, Refusal
from trnspec.experiment import Experiment
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.kubernetes import Kubernetes
from trnspec.operations.running.active_run import ActiveRun
from trnspec.operations.running.run_plan import RunPlan
from trnspec.operations.running.state import RunStore, claimed, unfinished
from trnspec.operations.running.steps import run_to_end


class Driver:
    """Every run is a process of its own."""

    def __init__(self, world: World, aws: Aws, cluster: Kubernetes, out: Path) -> None:
        self.world, self.aws, self.cluster, self.out = world, aws, cluster, out
        self.clock = FakeClock(world.tick)
        world.now = self.clock.now
        self.files = world.deploy()
        self.store = RunStore(world.experiment, aws)
        self.said: list[str] = []
        self.reports: list[Path] = []
        self.verified = 0
        self.findings: list[Finding] = []
        self.hours = 3.0

    def take_run(self) -> ActiveRun:
        """A process that takes the run up."""
        now, experiment = self.clock.now(), self.world.experiment
        held = unfinished(experiment, self.store, now=now, take_over=False)
        return ActiveRun(
            experiment=experiment,
            aws=self.aws,
            cluster=self.cluster,
            clock=self.clock,
            store=self.store,
            held=claimed(experiment, self.store, held, now=now),
            files=self.files,
            plan=RunPlan(experiment=experiment, now=now, asked_hours=self.hours),
            out=self.out,
            say=self.said.append,
            report=self.reports.append,
            verify=self._verify,
        )

    def run(self, *, keep_nodes: bool = False) -> dict[str, Any]:
        return run_to_end(self.take_run(), keep_nodes=keep_nodes)

    def _verify(self, *_: object, **__: object) -> list[Finding]:
        self.verified += 1
        return self.findings

    def redeploy(self) -> None:
        """The same experiment with another image of the tools."""
        self.world.image = "registry.example/tools:2"
        self.world.apply()

    def jobs(self, prefix: str = "") -> list[dict[str, Any]]:
        """Jobs in the cluster."""
        return [job for job in self.world.api.of("jobs") if job["metadata"]["name"].startswith(prefix)]

    def compiling(self) -> list[dict[str, Any]]:
        """Jobs that make an artifact now."""
        ended = [job for job in self.jobs("compile-") if job.get("status", {}).get("conditions")]
        return [job for job in self.jobs("compile-") if job not in ended]

    def artifacts(self) -> list[str]:
        """Markers of whole artifacts."""
        return [key for key in self.world.stored("artifacts") if key.endswith("/COMPLETE")]

    def line(self) -> str:
        """The line with which a run that is bound to fail ends."""
        with pytest.raises(Refusal) as caught:
            self.run()
        return str(caught.value)


def driver_of(experiment: Experiment, aws: Aws, folder: Path) -> Driver:
    """Of a deployment of this experiment, without kubectl."""
    api = ApiServer()
    return Driver(World(experiment, api), aws, DirectKubernetes(api, experiment), folder / "results")


def interrupt(run: ActiveRun, step: str, when: str) -> None:
    """Ctrl-C as the step is entered, or between its work and the moment at which the work is remembered."""
    save = run.save

    def interrupted(**changes: object) -> None:
        done = changes.get("done", ())
        entered = when == "begins" and changes.get("step") == step
        ended = when == "ends" and isinstance(done, tuple) and done[-1:] == (step,)
        again = when == "ends" and step in run.state.done and changes.get("step") not in (None, step)
        if ended or again:
            raise KeyboardInterrupt
        save(**changes)
        if entered:
            raise KeyboardInterrupt

    run.save = interrupted  # pyrefly: ignore[method-assign]  # the one place where a kill can be timed
