"""What the reference experiment resolves to, and what the facts behind it must agree on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from experiment import Experiment, load
from experiment.arms import digest
from experiment.compilation import artifact_key
from experiment.placement import nodes_needed, place
from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Callable[[dict[str, Any]], object]], Path]


def test_the_reference_is_the_published_pair(reference: Experiment) -> None:
    baseline, treatment = reference.arms
    assert (baseline.name, treatment.name) == ("qwen-vllm", "qwen-sd-vllm")
    assert baseline.speculation is None
    assert treatment.speculation is not None
    assert treatment.speculation.draft.model.name == "Qwen/Qwen3-1.7B"
    assert treatment.speculation.num_speculative_tokens == 7
    assert baseline.serving.tensor_parallel == 32
    assert [arm.tokens_per_step for arm in reference.arms] == [1, 7], "k tokens at most, not one more"


def test_both_arms_fill_one_node_without_sharing_a_device(reference: Experiment) -> None:
    taken = [
        (p.node, device)
        for p in place(reference)
        for device in range(p.first_device, p.first_device + p.devices)
    ]
    assert nodes_needed(reference) == 1
    assert sorted(taken) == [(0, device) for device in range(16)]


def _treat(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["arms"][1]["speculation"].update({key: value})


SPELLINGS: dict[str, tuple[Callable[[dict[str, Any]], object], ...]] = {
    "tensor parallelism": (
        lambda data: data["serving"].pop("tensor_parallel", None),
        lambda data: data["serving"].update(tensor_parallel=32),
        lambda data: data["serving"].update(tensor_parallel=None),
    ),
    "draft length": (
        lambda data: data["arms"][1]["speculation"].pop("draft_max_model_len", None),
        _treat("draft_max_model_len", 1024),
    ),
    "replicas": (
        lambda data: data.update(serve={"arm": "qwen-vllm", "replicas": 2}),
        lambda data: data.update(serve={"arm": "qwen-vllm", "replicas": 2, "max_replicas": 2}),
        lambda data: data.update(serve={"arm": "qwen-vllm", "replicas": 2, "max_replicas": None}),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_default_may_be_left_out_or_written(variation: Variation, name: str) -> None:
    assert len({digest(load(variation(spelling))) for spelling in SPELLINGS[name]}) == 1


def _check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiment", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ}, check=False)


def test_check_prints_arms_keys_unknowns_and_dated_cost(reference: Experiment) -> None:
    result = _check(str(REFERENCE))
    assert result.returncode == 0
    for arm in reference.arms:
        assert artifact_key(arm) in result.stdout
    for words in ("not known before a run", "revision of Qwen/Qwen3-32B", "2025-11-30", "$/h"):
        assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert result.stderr == ""


def test_check_speaks_json() -> None:
    data = json.loads(_check(str(REFERENCE), "--json").stdout)
    assert [arm["devices"] for arm in data["arms"]] == [list(range(8)), list(range(8, 16))]
    assert data["usd_per_hour"]["arms_up"] > data["usd_per_hour"]["no_trn2_node"]


def test_check_declares_what_speculation_changes_in_an_engine(variation: Variation) -> None:
    """vLLM Neuron's features guide: a speculative configuration turns asynchronous scheduling off."""
    path = str(variation(NATIVE))
    lines = _check(path).stdout.splitlines()
    at = lines.index("  declared    qwen-sd-vllm, beside speculation")
    assert lines[at + 1].startswith("              asynchronous scheduling is off")
    assert max(map(len, lines)) <= 100
    plain, drafting = json.loads(_check(path, "--json").stdout)["arms"]
    assert plain["also_changes"] == []
    assert len(drafting["also_changes"]) == 1
    assert "declared" not in _check(str(REFERENCE)).stdout


def test_check_refuses_with_exit_2_and_no_traceback(variation: Variation) -> None:
    result = _check(str(variation(_treat("num_speculative_tokens", 1))))
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_the_core_starts_no_jsii_and_no_network() -> None:
    code = (
        "import sys, pathlib, experiment; experiment.load(pathlib.Path(sys.argv[1]));"
        "print([m for m in ('jsii', 'boto3', 'aiohttp', 'urllib.request', 'asyncio') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(REFERENCE)]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout == "[]\n"
