"""`./trnspec run` as a process of its own: moto and the API server behind sockets, the real kubectl, a kill -9 in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.moto_api._internal.models import moto_api_backend
from moto.server import ThreadedMotoServer

from cdk8s_charts.manifests import texts, write
from experiment import Experiment
from experiment.naming import ACTIVE_RUN
from tests.benchmark.records import store
from tests.benchmark.show.runs import run_of
from tests.conftest import REFERENCE, ROOT
from tests.operations.api_server import ApiServer
from tests.operations.world import World

QUICKLY = (
    "import sys; from operations.running import context; context.POLL_S = 0.02; "
    "from operations.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
"""The command line, but for the pause between two looks."""


@dataclass
class ServedWorld(World):
    """The world behind sockets; a benchmark leaves records that a report can be made of."""

    address: str = ""
    records: Path = Path()
    compiles: bool = True
    made: Callable[[str], Any] = field(init=False)

    def __post_init__(self) -> None:
        @cache
        def made(service: str) -> Any:
            return boto3.client(service, region_name=self.region, endpoint_url=self.address)

        self.made = made

    def client(self, service: str) -> Any:
        return self.made(service)

    def _move_job(self, job: dict[str, Any]) -> None:
        if self.compiles or not job["metadata"]["name"].startswith("compile-"):
            super()._move_job(job)

    def store(self, purpose: str, key: str, content: object) -> None:
        super().store(purpose, key, content)
        folder, _, name = key.rpartition("/")
        if purpose == "results" and name == "summary.json":
            bucket = f"{self.experiment.name}-results-123456789012-{self.region}"
            raw = (self.records / "requests.jsonl").read_bytes()
            self.client("s3").put_object(Bucket=bucket, Key=f"{folder}/requests.jsonl", Body=raw)

    def state(self) -> dict[str, Any]:
        """Of the run that is under way; nothing without one."""
        found: dict[str, Any] = json.loads(self.stored("results").get(ACTIVE_RUN, b"{}"))
        return found


@pytest.fixture
def world(experiment: Experiment, api: ApiServer, credentials: None, tmp_path: Path) -> Iterator[ServedWorld]:
    moto_api_backend.reset()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = f"http://localhost:{server.get_host_and_port()[1]}"
        records = store(run_of(), tmp_path / "records")
        world = ServedWorld(experiment, api, address=address, records=records)
        write(texts(experiment, world.deploy(), tmp_path / "manifests"))
        api.changed = world.tick
        yield world
    finally:
        server.stop()
        moto_api_backend.reset()


@pytest.fixture
def begin(world: ServedWorld, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `./trnspec run` on that world."""

    def started(*more: str) -> subprocess.Popen[str]:
        given = ["run", str(REFERENCE), "--manifests", str(tmp_path / "manifests"), "--skip-verify"]
        return subprocess.Popen(
            [sys.executable, "-c", QUICKLY, *given, "--out", str(tmp_path / "out"), *more],
            cwd=ROOT,
            env={**os.environ, "AWS_ENDPOINT_URL": world.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until it is so, as long as the process lives."""
    end = time.monotonic() + 300
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_the_same_command_goes_on_after_kill_9_and_ends_with_the_report_and_no_node(
    world: ServedWorld, begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    world.compiles = False
    killed = begin()
    wait_for(lambda: world.state().get("step") == "compile", killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    left = world.state()
    assert (world.nodes, left["nodes"]) == (1, 1)
    (schedule,) = world.rentals()
    assert schedule["Name"] == "qwen3-32b-scale-to-zero", "what ends the rental when nobody comes back"

    planned = begin("--dry-run", "--json")
    out, _ = planned.communicate(timeout=300)
    assert json.loads(out)["resumes"] == left["id"]

    world.compiles = True
    ended = begin("--json")
    out, err = ended.communicate(timeout=300)
    assert ended.returncode == 0, err
    answer = json.loads(out)
    assert answer["id"] == left["id"]
    assert world.nodes == 0
    assert world.rentals() == []
    assert world.state() == {}
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["comparisons"]
    assert [one["spec"]["replicas"] for one in world.api.of("deployments")] == [0, 0]
    assert "goes on with run" in err
