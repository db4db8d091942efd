"""The experiment that the lab's guide writes out for a GPU is one that loads, renders without findings and would be started."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from cdk8s_charts.render import render
from experiment import Experiment, load
from lab.real.servers import Engine, mounted_folders
from lab.rendered import containers, mounted_plan
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """As somebody would copy it out of the guide."""
    guide = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"(?ms)^ *```yaml\n(.*?)^ *```$", guide)
    folder = tmp_path_factory.mktemp("experiments")
    shutil.copytree(ROOT / "experiments" / "prompts", folder / "prompts")
    path: Path = folder / "my-gpu.yaml"
    path.write_text(textwrap.dedent(block), encoding="utf-8")
    return load(path)


def test_the_real_pair_is_started_from_its_hub(experiment: Experiment) -> None:
    servers = containers(render(experiment))
    engine = Engine(command=["vllm"], folders=mounted_folders(experiment, {}))
    argv = engine.argv(servers["drafting"], 8001)
    assert argv[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert '"model": "Qwen/Qwen3-1.7B"' in argv[argv.index("--speculative-config") + 1]


def test_its_plan_asks_for_answers_without_thinking(experiment: Experiment) -> None:
    plan = mounted_plan(render(experiment))
    assert plan.extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert plan.arms[1].max_tokens_per_step == 16
