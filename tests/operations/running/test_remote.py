"""`run --remote`: the run in a build, seen by those who start, follow, leave and stop it. moto has the project, the builds, the log, the
buckets and the topic; `builds.py` lets a build do what its project says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends

from cdk8s_charts.manifests import read
from tests.conftest import REFERENCE, ROOT
from tests.operations.api_server import ApiServer, DirectKubernetes
from tests.operations.builds import Builds
from tests.operations.clients import shared_client
from tests.operations.clock import START, FakeClock
from tests.operations.conftest import Say
from tests.operations.enforcement import Enforcement
from tests.operations.world import World
from trnspec.core.command_line import _interrupt
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment, naming
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.running import in_build, launch, remote
from trnspec.operations.running.remote import RunOptions

SENTENCE = "Speculation pays here. It is so up to 4 concurrent requests."


class Remote:
    """A deployed experiment, its builds, and whoever types commands."""

    def __init__(self, world: World, builds: Builds, clock: FakeClock, say: Say, home: Path) -> None:
        self.world, self.builds, self.clock, self._say, self.home = world, builds, clock, say, home

    def typed(self, *options: str) -> tuple[int, str, str]:
        return self._say("run", str(REFERENCE), "--remote", "--out", str(self.home), *options)

    @property
    def notices(self) -> list[tuple[str, str]]:
        """Subject and text of what was told to those who receive the alarms."""
        (topic,) = sns_backends[DEFAULT_ACCOUNT_ID][self.world.region].topics.values()
        return [(str(subject), text) for _, text, subject, _, _ in topic.sent_notifications]

    @property
    def left(self) -> dict[str, Any]:
        """The state of the unfinished run."""
        found: dict[str, Any] = json.loads(self.world.stored("results").get(naming.ACTIVE_RUN, b"{}"))
        return found

    @property
    def statuses(self) -> list[str]:
        return [build["buildStatus"] for build in self.builds.all]


@pytest.fixture
def there(
    experiment: Experiment,
    account: None,
    enforcement: Enforcement,
    say: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Remote:
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    world = World(experiment, ApiServer(), files=read(experiment, ROOT / "manifests"))
    world.deploy()
    world.client("sns").create_topic(Name=naming.notices_topic(experiment))
    clock = FakeClock(world.tick)
    world.now = clock.now
    cluster = DirectKubernetes(world.api, experiment)
    monkeypatch.setattr(launch, "Clock", lambda: clock)
    monkeypatch.setattr(launch, "cluster_of", lambda *_: nullcontext(cluster))
    monkeypatch.setattr(launch, "_report", lambda _: None)
    builds = Builds(world, clock, tmp_path / "in-build", monkeypatch)
    builds.as_build = lambda: enforcement.acting_as(None)  # whose rights tests/infra/pipeline judges
    return Remote(world, builds, clock, say, tmp_path / "home")


def test_the_log_comes_to_the_terminal_and_the_results_home_and_everybody_is_told(there: Remote) -> None:
    there.world.on_tick.append(lambda: answer(there.world))
    code, _, err = there.typed("--skip-verify")
    assert code == 0, err
    (build,) = there.builds.all
    assert f"{build['id']}: started; Ctrl-C stops following" in err
    assert "set the Trn2 nodes to 0" in err, "what the build says"
    assert json.loads((there.home / "summary.json").read_text())["sentence"] == SENTENCE
    assert (there.world.nodes, there.left, there.statuses) == (0, {}, ["SUCCEEDED"])
    ((subject, text),) = there.notices
    assert subject == "qwen3-32b: the run has an answer"
    assert text.startswith("Speculation pays here (")
    assert text.endswith("\n\n./trnspec run experiments/qwen3-32b.yaml --remote --fetch")


def answer(world: World) -> None:
    """What the benchmark's pod writes, with a sentence."""
    for key in world.stored("results"):
        if key.startswith("runs/measured") and key.endswith("summary.json"):
            world.store("results", key, {"sentence": SENTENCE})


def at(there: Remote, step: str, act: Callable[[], None]) -> None:
    """Once, as soon as the run is at this step."""

    def look() -> None:
        if there.left.get("step") == step:
            there.world.on_tick.remove(look)
            act()

    there.world.on_tick.append(look)


def test_a_run_that_is_asked_to_stop_ends_as_ctrl_c_ends_it_and_the_next_start_goes_on(there: Remote) -> None:
    at(there, "compile", lambda: remote.request_stop(there.world.experiment, aws(), there.builds.all[-1]))
    code, _, err = there.typed("--skip-verify")
    assert (code, there.statuses) == (1, ["FAILED"])
    assert "interrupted at compile; 1 Trn2 node running at $35.76 an hour" in err
    assert "(BUILD: exit status 130); read the lines above, then continue it: ./trnspec run" in err
    (first,) = there.notices
    assert first[0] == "qwen3-32b: the run was stopped"
    assert "is at compile, 1 Trn2 node billed until 2026-04-01T" in first[1]
    begun, there.world.on_tick[:] = there.left["id"], []
    code, out, err = there.typed("--skip-verify", "--json")
    assert (code, json.loads(out)["run"], there.world.nodes) == (0, begun, 0), err
    assert f"continues run {begun}" in err


def test_who_leaves_may_come_again_and_who_comes_second_follows_the_first(there: Remote) -> None:
    there.builds.stuck = True

    def leave() -> None:
        raise KeyboardInterrupt

    there.world.on_tick.append(leave)
    code, _, err = there.typed("--skip-verify")
    assert (code, there.statuses) == (130, ["IN_PROGRESS"])
    assert "the run continues: ./trnspec run" in err
    there.builds.stuck, there.builds.initiator = False, "bob"
    there.world.on_tick.remove(leave)
    code, _, err = there.typed("--skip-verify")
    assert (code, there.statuses) == (0, ["SUCCEEDED"]), err
    named = f"{there.builds.all[0]['id']}: runs already, started by alice at 2026-04-01T12:00:00Z"
    assert f"{named}; no other build is started" in err


def test_of_two_who_start_at_once_the_second_is_told_who_runs(there: Remote) -> None:
    second = list[dict[str, Any]]()

    def start() -> None:
        second.append(remote.start_build(there.world.experiment, aws(), RunOptions(path=REFERENCE)))
        for _ in range(2):
            there.builds.look_at([second[0]["id"]])

    at(there, "compile", start)
    code, _, err = there.typed("--skip-verify")
    assert (code, there.statuses) == (0, ["SUCCEEDED", "FAILED"]), err
    named = f": {there.builds.all[0]['id']}:{os.getpid()} drives it (last write"
    assert named in there.builds.log(second[0])


def test_before_the_time_of_a_build_is_over_the_next_goes_on_with_what_is_left_of_the_waiting(
    there: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_build, "LASTS", timedelta(hours=1))
    there.world.no_capacity = True

    def come() -> None:
        there.world.no_capacity = there.world.now() < START + timedelta(hours=2, minutes=20)

    there.world.on_tick.append(come)
    code, _, err = there.typed("--skip-verify", "--wait", "12h", "--hours", "4")
    assert (code, there.statuses) == (0, ["SUCCEEDED"] * 3), err
    waits = [int(re.findall(r"--wait (\d+)s", given(build))[0]) / 3600 for build in there.builds.all]
    assert waits == pytest.approx([12, 11, 10], abs=0.6), "a pause is half an hour at most"
    assert all("--hours 4.0 " in given(build) for build in there.builds.all)
    assert (there.home / "summary.json").exists()
    assert [subject for subject, _ in there.notices] == ["qwen3-32b: the run has an answer"]


def test_the_next_build_has_what_is_left_of_the_nodes_hours(
    there: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(there, "compile", lambda: monkeypatch.setattr(in_build, "LASTS", timedelta(0)))
    begin = remote.start_build

    def begun(*how: Any) -> Any:
        monkeypatch.setattr(in_build, "LASTS", timedelta(hours=30))
        return begin(*how)

    monkeypatch.setattr(in_build, "start_build", begun)
    code, _, err = there.typed("--skip-verify", "--hours", "4")
    assert (code, there.statuses, there.world.nodes) == (0, ["SUCCEEDED"] * 2, 0), err
    (hours,) = re.findall(r"--hours (\S+)", given(there.builds.all[1]))
    assert 3.5 < float(hours) < 4, "the schedule that ends the nodes stays where it is"


def test_a_run_that_waits_for_nothing_does_not_begin_for_ever(
    there: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(there, "weights", lambda: monkeypatch.setattr(in_build, "LASTS", timedelta(0)))
    code, _, err = there.typed()
    assert (code, there.statuses) == (1, ["FAILED"])
    assert (
        "is at weights, 0 Trn2 nodes billed; ./trnspec run experiments/qwen3-32b.yaml --remote goes on" in err
    )
    assert [subject for subject, _ in there.notices] == ["qwen3-32b: the run ended without an answer"]


def test_after_a_build_that_was_killed_lease_schedule_and_next_start_are_as_ever(there: Remote) -> None:
    def kill() -> None:
        raise SystemExit(9)  # which nothing in the program catches

    at(there, "compile", kill)
    assert there.typed("--skip-verify")[0] == 1
    assert (there.world.nodes, len(there.world.rentals())) == (1, 1), "which ends them"
    begun = there.left["id"]
    code, _, err = there.typed("--skip-verify")
    assert (code, f"run {begun}: {there.builds.all[0]['id']}" in err, "drives it" in err) == (1, True, True)
    there.clock.time += timedelta(minutes=11)
    code, out, err = there.typed("--skip-verify", "--json")
    assert (code, json.loads(out)["run"], there.world.nodes) == (0, begun, 0), err


def test_a_build_that_does_not_obey_is_stopped(there: Remote) -> None:
    assert "no run is under way in CodeBuild" in there.typed("--stop")[2]
    there.builds.stuck = True
    remote.start_build(there.world.experiment, aws(), RunOptions(path=REFERENCE))
    code, _, err = there.typed("--stop")
    assert (code, there.statuses) == (0, ["STOPPED"])
    assert "did not stop within 10 minutes and was ended by force" in err


def test_what_a_run_left_is_brought_home_later(there: Remote) -> None:
    assert "no build has finished a run yet" in there.typed("--fetch")[2]
    assert there.typed("--skip-verify", "--until", "compile")[0] == 0
    assert (there.typed("--skip-verify")[0], there.world.nodes) == (0, 0)
    shutil.rmtree(there.home)
    code, _, _ = there.typed("--fetch")
    assert (code, (there.home / "summary.json").exists()) == (0, True)


def test_a_build_refuses_another_state_of_the_file_than_the_one_that_was_started(
    there: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "digest", lambda _: "0" * 12)
    code, _, err = there.typed()
    assert (code, there.left) == (1, {})
    assert "the deployed sources have another state of it than the one that was started; deploy" in err
    assert there.notices[0][0] == "qwen3-32b: the run ended without an answer"


def test_status_names_the_build_and_who_started_it(
    there: Remote, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = DirectKubernetes(there.world.api, there.world.experiment)
    monkeypatch.setattr("trnspec.operations.status.cluster_of", lambda *_: nullcontext(cluster))
    there.builds.stuck = True
    build = remote.start_build(there.world.experiment, aws(), RunOptions(path=REFERENCE))
    found = json.loads(say("status", str(REFERENCE), "--json")[1])["build"]
    assert found == {"name": build["id"], "state": "runs it, started by alice at 2026-04-01T12:00:00Z"}


def test_a_stop_that_is_due_interrupts_whatever_the_run_waits_for(
    there: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread itself, and the signal, which `carried_out` makes of Ctrl-C."""
    monkeypatch.undo()
    monkeypatch.setattr(in_build, "_EVERY_S", 0.05)
    monkeypatch.setenv("CODEBUILD_BUILD_ID", "qwen3-32b-run:1")
    handler = signal.signal(signal.SIGTERM, _interrupt)
    try:
        build = in_build._Build(there.world.experiment, aws(), RunOptions(path=REFERENCE), Clock())
        remote.request_stop(there.world.experiment, aws(), {"id": "qwen3-32b-run:another"})
        with build.watch():
            time.sleep(0.3)
        remote.request_stop(there.world.experiment, aws(), {"id": "qwen3-32b-run:1"})
        with pytest.raises(KeyboardInterrupt), build.watch():
            time.sleep(30)
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_what_is_asked_for_arrives_in_a_build_as_it_was(tmp_path: Path) -> None:
    asked = RunOptions(path=REFERENCE, hours=2.5, wait_h=12, max_usd=300, skip_verify=True, until=None)
    context = launch.command.make_context("run", asked.words())
    found = RunOptions(**{one.name: context.params[one.name] for one in fields(RunOptions)})
    assert found == replace(asked, path=REFERENCE.relative_to(ROOT))
    with pytest.raises(
        Misuse, match="a build has the files of experiments/ and manifests/ only; move them there"
    ):
        RunOptions(path=tmp_path / "mine.yaml").words()


@pytest.mark.parametrize("option", ["--stop", "--fetch"])
def test_options_of_a_build_need_remote(option: str, say: Say) -> None:
    assert say("run", option)[::2] == (
        2,
        "trnspec run: --stop, --fetch: are for runs in CodeBuild; add --remote\n",
    )


def given(build: dict[str, Any]) -> str:
    """The words that a build got."""
    (variable,) = build["environment"]["environmentVariables"]
    return str(variable["value"])


def aws() -> Aws:
    """As somebody else sees it."""
    return Aws("us-east-2", make_client=shared_client)
