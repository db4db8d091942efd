"""EAGLE on both runtimes that have it: rendered, checked and placed, with the words that each runtime reads.

No EAGLE head (v1) for Llama-3.3-70B is public, so no experiment of this repository has such an arm; whoever trained one
names it as here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.parity import options
from cdk8s_charts.render import render
from experiment import InvalidExperiment, load
from tests.cdk8s_charts.conftest import of_kind
from tests.cdk8s_charts.test_command import OPTIONS, _table, neuron_keys
from tests.experiment.edits import EAGLE, LLAMA, SPECULATION, both, put

ARM = "qwen-sd-vllm"


@pytest.mark.parametrize(
    ("runtime", "mode", "method"),
    [
        ("nxdi-vllm-0.9.1", "eagle", None),  # by override: the fork ignores the method
        ("nxdi-vllm-0.16", "eagle", "eagle"),
        ("nxdi-vllm-0.16", "eagle3", "eagle3"),
    ],
)
def test_a_head_renders_on_every_runtime_that_reads_it(
    variation: Callable[..., Path], runtime: str, mode: str, method: str | None
) -> None:
    edit = both(EAGLE, put("runtime", runtime), put(f"{SPECULATION}.mode", mode))
    experiment = load(variation(edit))
    server = of_kind(render(experiment), "Deployment")[ARM]["spec"]["template"]["spec"]["containers"][0]
    told = options(server["command"])
    speculative = told["--speculative-config"]
    assert speculative["model"].startswith("/checkpoints/somebody/head/")
    assert speculative.get("method") == method
    config: dict[str, Any] = (
        told.get("--override-neuron-config") or (told["--additional-config"]["override_neuron_config"])
    )
    assert config["enable_eagle_speculation"] is True
    assert config["enable_fused_speculation"] is True
    assert config.get("is_eagle3", False) is (mode == "eagle3")
    dialect = experiment.arms[1].runtime.dialect
    assert {name for name in told if name} <= _table(OPTIONS[dialect]).keys()
    assert config.keys() <= neuron_keys(dialect)[0]
    assert json.dumps(config)  # nothing but JSON reaches the command line


@pytest.mark.parametrize("runtime", ["nxdi-vllm-0.9.1", "nxdi-vllm-0.16"])
def test_a_missing_head_is_one_line_with_what_to_write(variation: Callable[..., Path], runtime: str) -> None:
    edit = both(LLAMA, put("runtime", runtime), put(f"{SPECULATION}.mode", "eagle"))
    with pytest.raises(InvalidExperiment) as refused:
        load(variation(edit))
    (problem,) = refused.value.findings
    assert problem.where == "arms[1].speculation.draft.model"
    assert "needs a head that was trained for the target" in problem.why
    assert problem.remedy == "name a head and write `head_for: meta-llama/Llama-3.3-70B-Instruct` beside it"
