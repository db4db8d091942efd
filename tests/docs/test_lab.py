"""The experiment that the lab's guide writes out for a GPU is one that loads, renders without findings and would be started."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from cdk8s_charts.render import render
from experiment import load
from lab.programs import containers, mounted_plan
from lab.real.servers import LocalEngine, mounted_folders
from tests.conftest import ROOT


def test_the_pair_of_the_guide_is_started_from_its_hub_and_asked_without_thinking(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"(?ms)^ *```yaml\n(.*?)^ *```$", guide)
    shutil.copytree(ROOT / "experiments" / "prompts", tmp_path / "prompts")
    (tmp_path / "my-gpu.yaml").write_text(textwrap.dedent(block), encoding="utf-8")
    experiment = load(tmp_path / "my-gpu.yaml")
    files = render(experiment)

    engine = LocalEngine(command=["vllm"], folders=mounted_folders(experiment, {}))
    argv = engine.launch(containers(files)["drafting"], 8001).argv
    assert argv[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert '"model": "Qwen/Qwen3-1.7B"' in argv[argv.index("--speculative-config") + 1]
    plan = mounted_plan(files)
    assert plan.extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert plan.arms[1].max_tokens_per_step == 16
