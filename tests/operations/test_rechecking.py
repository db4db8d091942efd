"""`recheck`: a small run against arms that serve; what it refuses, what it leaves alone, and its exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID

from benchmark.measure.journal import RawRun, read
from benchmark.plan import Plan, from_dict
from experiment import naming
from operations import rechecking
from tests.benchmark import records
from tests.benchmark.conftest import plan_content
from tests.benchmark.records import answered
from tests.conftest import REFERENCE
from tests.operations.clock import FakeClock
from tests.operations.conftest import Say
from tests.operations.world import World

pytestmark = pytest.mark.usefixtures("direct")
PLAIN, DRAFTED = "qwen-vllm", "qwen-sd-vllm"
ROUTES = f'\nserve:\n  routes: {{json: {DRAFTED}, "*": {PLAIN}}}\n  most_at_once: {{{DRAFTED}: 8}}\n'


def answers(plan: Plan, ratio: float, **changes: Any) -> RawRun:
    """Every prompt of a plan, asked once of each arm at each load: plain decoding takes a tenth of a second a token."""
    requests = []
    for index, prompt in enumerate(plan.prompts):
        step_s = 0.1 + index / 1000
        for arm, load in ((arm, load) for arm in plan.arms for load in plan.concurrency):
            own_s = step_s / ratio if arm.speculative_tokens else step_s
            names: dict[str, Any] = {"prompt_id": prompt.id, "class_": prompt.class_, "concurrency": load}
            pair = f"{prompt.class_}/c{load}/{index:04d}"
            times = (0.1, 0.1 + own_s * (1 + index % 3 / 100))
            requests.append(answered(arm.name, index, chunk_s=times, **names, pair_id=pair, **changes))
    raw = records.raw_run(*requests)
    opening = replace(raw.sessions[0], plan=plan, plan_sha256=plan.sha256())
    return replace(raw, sessions=(opening,))


def promoted(**changes: Any) -> RawRun:
    """A run of the reference: drafting doubles the speed of json."""
    arms = [
        {"name": PLAIN, "url": "http://plain/v1", "usd_per_hour": 4.0},
        {"name": DRAFTED, "url": "http://drafted/v1", "speculative_tokens": 7, "max_tokens_per_step": 8},
    ]
    prompts = [
        {"id": f"{class_}-{i}", "class": class_, "prompt": f"{class_} {i}"}
        for class_ in ("json", "chat")
        for i in range(12)
    ]
    given = {"baseline": PLAIN, "arms": arms, "prompts": prompts, "concurrency": [1, 4], "requests": 12}
    return answers(from_dict(plan_content(**given | changes)), 2.0)


class Recheck:
    """The verb on a world whose arms serve, and what its Job finds there."""

    def __init__(self, world: World, say: Say, folder: Path) -> None:
        self.world, self._say, self.speed = world, say, 2.0
        self.file, self.run = folder / "mine.yaml", folder / "results" / "R"
        self.plans: list[Plan] = []
        self.jobs: list[dict[str, Any]] = []
        shutil.copy(REFERENCE, self.file)
        self.serve(ROUTES)
        records.store(promoted(), self.run)

    def serve(self, section: str) -> None:
        self.file.write_text(REFERENCE.read_text(encoding="utf-8") + section, encoding="utf-8")

    def __call__(self, *options: str) -> tuple[int, str, str]:
        return self._say("recheck", str(self.file), "--from", str(self.run), *options)

    def measure(self, name: str) -> None:
        """What the pods of the Job leave."""
        (job,) = (one for one in self.world.api.of("jobs") if one["metadata"]["name"] == name)
        pod = job["spec"]["template"]["spec"]
        (source,) = (one["configMap"]["name"] for one in pod["volumes"] if one["name"] == "plan")
        text = self.world.api.objects["configmaps", "qwen3-32b", source]["data"][naming.PLAN_FILE]
        self.plans.append(from_dict(json.loads(text)))
        self.jobs.append(pod)
        folder = records.store(answers(self.plans[-1], self.speed), self.run.parent / f"pod-{len(self.jobs)}")
        bucket = naming.bucket(self.world.experiment, "results", DEFAULT_ACCOUNT_ID)
        body = (folder / "requests.jsonl").read_bytes()
        self.world.client("s3").put_object(Bucket=bucket, Key=f"runs/{name}/requests.jsonl", Body=body)

    def state(self) -> tuple[Any, ...]:
        """What it may not change."""
        of = self.world.api.of
        left = [one["metadata"]["name"] for kind in ("jobs", "configmaps") for one in of(kind)]
        replicas = [one["spec"]["replicas"] for one in of("deployments")]
        kept = [key for key in self.world.stored("results") if key.startswith("state/")]
        return self.world.nodes, replicas, left, kept


@pytest.fixture
def recheck(world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recheck:
    """One node is up, and both arms."""
    world.group.scaling_config["desiredSize"] = 1
    for deployment in world.api.of("deployments"):
        deployment["spec"]["replicas"] = 1
    world.tick()
    made = Recheck(world, say, tmp_path)
    monkeypatch.setattr(rechecking, "Clock", lambda: FakeClock(world.tick))
    monkeypatch.setattr(world, "_finish", made.measure)
    return made


def test_a_policy_that_holds_is_measured_beside_the_service_and_nothing_else_changes(
    recheck: Recheck,
) -> None:
    before = recheck.state()
    code, out, err = recheck()
    assert code == 0, err
    assert "json: qwen-sd-vllm was 2.00 [" in out
    assert out.splitlines()[-1] == "the policy of run r1 holds for json"
    assert "chat is not checked: qwen-vllm drafts nothing" in err
    (plan,), (pod,) = recheck.plans, recheck.jobs
    assert (plan.classes, len(plan.prompts), plan.concurrency, plan.warmup) == (("json",), 8, (1,), 0)
    (run,) = (one for one in pod["initContainers"] if one["name"] == "run")
    assert run["args"] == ["--no-sense-check", "--closer-look", "0"]
    assert recheck.state() == before
    (folder,) = recheck.run.parent.glob("R-recheck-*")
    assert len(read(folder).requests) == 16
    said = " ".join(out.split())
    assert (
        "16 requests and 32 output tokens in 0.5 minutes, on nodes that bill anyway ($0.30 in that time"
        in said
    )


def test_a_policy_that_no_longer_holds_is_one_sentence_and_exit_1(recheck: Recheck) -> None:
    recheck.speed = 0.8
    code, out, _ = recheck("--json")
    found = json.loads(out)
    assert (code, [row["state"] for row in found["routes"]]) == (1, ["broken"])
    assert found["sentence"] == (
        "the policy of run r1 no longer holds: json with qwen-sd-vllm, slower; ./trnspec promote "
        f"{recheck.file} --from {recheck.run} --route json=qwen-vllm takes it back"
    )


def test_a_loss_that_real_requests_may_have_made_is_told_as_that(recheck: Recheck) -> None:
    recheck.speed = 0.8
    for arm, running in ((DRAFTED, (1, 6)), (PLAIN, (1,))):
        labels = {"labels": {naming.NAME: arm}}
        recheck.world.api.put("pods", f"{arm}-0", {"metadata": labels}, namespace="qwen3-32b")
        lines = [
            f"INFO Avg generation throughput: 9 tokens/s, Running: {n} reqs, Waiting: 0 reqs" for n in running
        ]
        recheck.world.api.logs[f"{arm}-0"] = "\n".join(lines)
    code, out, _ = recheck("--json")
    found = json.loads(out)
    assert (code, found["routes"][0]["state"]) == (3, "untold")
    assert found["real_requests"] == {PLAIN: 0, DRAFTED: 5}
    assert "cannot be told" in found["sentence"]


def test_the_smallest_load_is_taken_and_another_one_is_named(recheck: Recheck) -> None:
    shutil.rmtree(recheck.run)
    records.store(promoted(concurrency=[8, 4]), recheck.run)
    code, _, err = recheck("--at-once", "3")
    assert (code, recheck.plans[0].concurrency) == (0, (3,))
    assert "compared with what the run measured at 4 at a time, the nearest to 3 at a time" in err


def down(world: World, arm: str = DRAFTED, *, replicas: int = 0) -> None:
    deployment = world.api.objects["deployments", "qwen3-32b", arm]
    deployment["spec"]["replicas"], deployment["status"] = replicas, {"readyReplicas": 0}


def no_node(world: World) -> None:
    world.group.scaling_config["desiredSize"] = 0


def unfinished(world: World) -> None:
    state = {"schema": 1, "id": "20260401t120000z", "begun": "2026-04-01T12:00:00Z", "digest": "x"}
    world.store("results", naming.ACTIVE_RUN, {**state, "owner": "", "renewed": state["begun"]})


def no_cron_job(world: World) -> None:
    del world.api.objects["cronjobs", "qwen3-32b", naming.BENCHMARK_NAME]


def loaded(world: World) -> None:
    name = f"{naming.BENCHMARK_NAME}-by-hand"
    world.api.put("jobs", name, {"spec": {"suspend": False}}, namespace="qwen3-32b")


NOT_NOW: dict[str, tuple[Callable[[World], None], str]] = {
    "no node": (no_node, "no Trn2 node is up"),
    "0 replicas": (down, "deployment qwen-sd-vllm: is at 0 replicas"),
    "loading": (lambda world: down(world, replicas=1), "none of 1 replica is ready"),
    "unfinished": (unfinished, "run 20260401t120000z: is unfinished"),
    "loaded": (loaded, "loads the arms already"),
    "no cron job": (no_cron_job, "cronjob"),
}


@pytest.mark.parametrize("name", NOT_NOW)
def test_what_cannot_be_checked_now_exits_3_and_sends_nothing(recheck: Recheck, name: str) -> None:
    change, line = NOT_NOW[name]
    change(recheck.world)
    before = recheck.state()
    code, out, err = recheck()
    assert (code, out, recheck.plans) == (3, "", [])
    assert line in err
    assert recheck.state() == before


def test_an_arm_that_dies_meanwhile_ends_the_check_and_its_job(recheck: Recheck) -> None:
    before = recheck.state()[2]
    recheck.world.dying.add(DRAFTED)
    code, _, err = recheck()
    assert (code, recheck.state()[2]) == (3, before)
    assert "none of 1 replica is ready" in err


def test_a_job_that_failed_stays_for_its_log(recheck: Recheck) -> None:
    recheck.world.failing[naming.BENCHMARK_NAME] = "no space left"
    code, _, err = recheck()
    left = [
        one["metadata"]["name"]
        for one in recheck.world.api.of("jobs")
        if "recheck" in one["metadata"]["name"]
    ]
    assert (code, len(left)) == (3, 1)
    assert "no space left; read ./trnspec kubectl logs job/qwen-llmperf-recheck-20260401t120000z" in err


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("", "give the run that was promoted"),
        (
            f"\nserve:\n  arm: {DRAFTED}\n",
            "json is not checked: qwen-vllm, with which qwen-sd-vllm is compared",
        ),
        (f"\nserve:\n  arm: {PLAIN}\n", "qwen-vllm drafts nothing"),
    ],
)
def test_a_policy_without_a_route_that_can_be_compared_exits_2(
    recheck: Recheck, section: str, line: str
) -> None:
    recheck.serve(section)
    code, _, err = recheck()
    assert code == 2
    assert line in " ".join(err.split())
    assert recheck.plans == []


def test_only_a_measured_run_of_this_experiment_is_a_policy(recheck: Recheck) -> None:
    for raw in (records.emulated(promoted()), promoted(experiment="other")):
        shutil.rmtree(recheck.run)
        records.store(raw, recheck.run)
        assert recheck()[0] == 2
