"""`./trnspec run` from its command line to the report, with an end without notice in between."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from cdk8s_charts.manifests import texts, write
from experiment.naming import ACTIVE_RUN
from operations.running import launch, state
from tests.benchmark.records import store
from tests.benchmark.show.runs import run_of
from tests.conftest import REFERENCE
from tests.operations.clock import FakeClock
from tests.operations.conftest import Say
from tests.operations.direct import DirectKubernetes
from tests.operations.world import World, manifests


def test_the_same_command_goes_on_after_its_process_is_gone_and_ends_with_the_report_and_no_node(
    world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = (store(run_of(), tmp_path / "records") / "requests.jsonl").read_bytes()
    write(texts(world.experiment, manifests(world.experiment), tmp_path / "manifests"))
    clock, cluster = FakeClock(world.tick), DirectKubernetes(world.api, world.experiment.name)
    monkeypatch.setattr(launch, "Clock", lambda: clock)
    monkeypatch.setattr(launch, "cluster_of", lambda *_: nullcontext(cluster))
    command = ["run", str(REFERENCE), "--manifests", str(tmp_path / "manifests"), "--skip-verify"]
    command += ["--out", str(tmp_path / "out")]

    def left() -> dict[str, object]:
        found: dict[str, object] = json.loads(world.stored("results").get(ACTIVE_RUN, b"{}"))
        return found

    def killed() -> None:
        if left()["step"] == "compile":
            raise SystemExit(9)  # which nothing in the program catches

    def recorded() -> None:
        for key in world.stored("results"):
            if key.startswith("runs/measured") and key.endswith("summary.json"):
                where = f"qwen3-32b-results-123456789012-{world.region}"
                beside = key.replace("summary.json", "requests.jsonl")
                world.client("s3").put_object(Bucket=where, Key=beside, Body=records)

    code, plan, _ = say(*command, "--dry-run")
    assert (code, world.nodes, world.stored("results")) == (0, 0, {})
    assert "set the Trn2 nodes to 0" in plan
    assert "for the answer at list price" in plan
    gone = subprocess.Popen(["true"])
    gone.wait()
    world.on_tick.append(killed)
    with monkeypatch.context() as patch:
        patch.setattr(state, "myself", lambda: f"{state._host()}:{gone.pid}")
        with pytest.raises(SystemExit):
            say(*command)
    begun = left()
    assert (world.nodes, begun["nodes"]) == (1, 1)
    (schedule,) = world.rentals()
    assert schedule["Name"] == "qwen3-32b-scale-to-zero", "what ends the rental when nobody comes back"
    assert json.loads(say(*command, "--dry-run", "--json")[1])["resumes"] == begun["id"]

    world.on_tick[:] = [recorded]
    code, out, err = say(*command, "--json")
    assert code == 0, err
    assert json.loads(out)["id"] == begun["id"]
    assert (world.nodes, world.rentals(), left()) == (0, [], {})
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["comparisons"]
    assert [one["spec"]["replicas"] for one in world.api.of("deployments")] == [0, 0]
    assert "goes on with run" in err
