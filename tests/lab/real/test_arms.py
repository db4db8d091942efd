"""The rendered servers, started on this machine: other folders, host and port, and nothing else."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts.manifest_file import read
from experiment import Experiment, load
from experiment.catalogue.models import MODELS
from experiment.finding import Refusal
from lab.engine.servers import Command
from lab.models.manifest import CHECKPOINTS
from lab.real.arms import commands, mounted_folders
from lab.real.results import TINY, label_of
from lab.rendered import Container, containers

ROOT = Path(__file__).parents[3]
PORT = 4711


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(ROOT / "experiments" / "lab-tiny.yaml")


@pytest.fixture(scope="module")
def servers(tiny: Experiment) -> dict[str, Container]:
    return containers(read(tiny, ROOT / "manifests"))


@pytest.fixture(scope="module")
def started(tiny: Experiment, servers: dict[str, Container]) -> dict[str, Command]:
    found = commands(list(servers.values()), folders=mounted_folders(tiny, {}), engine=["/lab/vllm"])
    return {command.name: command for command in found}


def test_only_folders_host_and_port_differ_from_the_rendered_command(
    started: dict[str, Command], servers: dict[str, Container]
) -> None:
    for name, server in servers.items():
        pairs = list(zip(server.command[1:], started[name].argv(PORT)[1:], strict=True))
        changed = {ours for theirs, ours in pairs if theirs != ours and not theirs.startswith("{")}
        assert changed == {str(CHECKPOINTS / "target"), "127.0.0.1", str(PORT)}


def test_drafts_and_windows_are_those_of_the_arms(started: dict[str, Command]) -> None:
    def config(name: str) -> dict[str, object]:
        argv = list(started[name].argv(PORT))
        found: dict[str, object] = json.loads(argv[argv.index("--speculative-config") + 1])
        return found

    assert "--speculative-config" not in started["tiny"].argv(PORT)
    assert config("tiny-weak")["model"] == str(CHECKPOINTS / "weak-draft")
    for k in (1, 3, 5, 7, 10, 15):
        assert config(f"tiny-sd-k{k}")["num_speculative_tokens"] == k
        assert config(f"tiny-sd-k{k}")["model"] == str(CHECKPOINTS / "draft")


def test_the_rendered_probes_ask_the_server_on_its_own_port(started: dict[str, Command]) -> None:
    probe = started["tiny"].startup
    assert probe is not None
    words = probe(PORT)
    assert (words[0], words[-1]) == (sys.executable, "lab/target")
    assert f"127.0.0.1:{PORT}" in words[2]
    assert ":8000" not in words[2]
    assert started["tiny"].health == "/health"
    assert started["tiny"].startup_s == 1800


def test_the_rendered_environment_stays_and_threads_are_pinned(started: dict[str, Command]) -> None:
    environment = started["tiny"].environment
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_only_models_of_the_experiment_can_be_replaced(tiny: Experiment) -> None:
    with pytest.raises(
        Refusal, match=r"--weights: 'lab/big' is no model of lab-tiny; those are lab/target, "
    ):
        mounted_folders(tiny, {"lab/big": "Qwen/Qwen3-32B"})


def test_models_that_are_not_the_labs_come_from_their_hub(tiny: Experiment) -> None:
    model = next(model for model in MODELS.values() if model.name == "Qwen/Qwen3-32B")
    target = replace(tiny.baseline.target, model=model)
    real = replace(tiny, arms=(replace(tiny.baseline, target=target),))
    assert set(mounted_folders(real, {}).values()) == {"Qwen/Qwen3-32B"}
    assert label_of(real, {}) == "measured on this machine, Qwen/Qwen3-32B"
    assert label_of(tiny, {}) == TINY
    assert label_of(tiny, {"lab/target": "Qwen/Qwen3-32B"}).startswith(
        "measured on this machine, Qwen/Qwen3-32B"
    )


def test_models_of_a_hub_may_be_fetched(tiny: Experiment, servers: dict[str, Container]) -> None:
    folders = mounted_folders(tiny, {"lab/target": "Qwen/Qwen3-32B", "lab/draft": "Qwen/Qwen3-1.7B"})
    (one,) = commands([servers["tiny-sd-k15"]], folders=folders, engine=["vllm"])
    argv = list(one.argv(PORT))
    assert argv[2] == "Qwen/Qwen3-32B"
    assert '"model": "Qwen/Qwen3-1.7B"' in argv[argv.index("--speculative-config") + 1]
    assert "HF_HUB_OFFLINE" not in one.environment


def test_further_options_come_last_where_they_count(tiny: Experiment, servers: dict[str, Container]) -> None:
    folders = mounted_folders(tiny, {})
    (one,) = commands([servers["tiny"]], folders=folders, engine=["vllm"], options=["--dtype", "bfloat16"])
    assert one.argv(PORT)[-2:] == ["--dtype", "bfloat16"]


def test_a_server_that_wants_a_secret_is_refused(tiny: Experiment, servers: dict[str, Container]) -> None:
    locked = replace(servers["tiny"], secrets=("VLLM_API_KEY",))
    with pytest.raises(Refusal, match=r"arm tiny: VLLM_API_KEY comes from a Secret, .*api_key_secret out"):
        commands([locked], folders=mounted_folders(tiny, {}), engine=["vllm"])
