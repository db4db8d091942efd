"""The program that compiles copies with one layer, in an image made up of modules whose loader and builder work as the real ones do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts import one_layer
from cdk8s_charts.image_probe import CANNOT_SAY, REFUSED, TAKEN
from tests.cdk8s_charts.made_up_image import SHAPES, SIZES, Image, image_of
from tests.conftest import ROOT

LOADER = """
import json, os, pathlib, types
from neuronx_distributed_inference.models.application_base import NeuronApplicationBase
class Model:
    def load_weights(self, model, draft, given):
        path = os.environ["NEURON_COMPILED_ARTIFACTS"]
        try:
            NeuronApplicationBase(path, None).load(path)
        except FileNotFoundError:
            application = NeuronApplicationBase(model, types.SimpleNamespace(draft=draft, given=given))
            application.compile(path)
            application.load(path)
def load(model_config, speculation_config):
    draft = speculation_config and speculation_config.model
    Model().load_weights(model_config.model, draft, model_config.override_neuron_config)
def get_neuron_model(model_config, parallel_config, scheduler_config, lora_serving_config):
    load(model_config, None)
def get_neuron_speculation_model(model_config, parallel_config, scheduler_config, speculation_config):
    load(model_config, speculation_config)
"""
APPLICATION = """
import concurrent.futures, json, os, pathlib, threading, time
busy, most = 0, 0
lock = threading.Lock()
def compiler(graph):
    global busy, most
    with lock:
        busy += 1
        most = max(most, busy)
    time.sleep(0.02)
    with lock:
        busy -= 1
def about(model):
    return model and json.loads(pathlib.Path(model, "config.json").read_text())
class NeuronApplicationBase:
    def __init__(self, model, config):
        if not pathlib.Path(model, "config.json").exists():
            raise FileNotFoundError(model)
        self.model, self.config = model, config
    def compile(self, path, debug=False):
        exec(about(self.model).get("ends", ""))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(compiler, range(4)))
        pathlib.Path(LOG).open("a").write(json.dumps({
            "target": about(self.model), "draft": about(self.config.draft), "given": self.config.given,
            "files": sorted(os.listdir(self.model)), "here": os.getcwd(), "path": path, "most": most}) + "\\n")
    def load(self, path):
        raise RuntimeError("nrt_init: no neuron device")
"""
DEEP = {**SIZES, "num_hidden_layers": 3, "layer_types": ["full", "full", "full"], "eos_token_id": [1, 2]}
COMPILER = "Failed compilation with ['neuronx-cc', 'compile']: 12:00 INFO a log\\n12:01 ERROR: [NCC_EBIR023] too wide\\nmore"


class Copies:
    """An image with a loader, and what its compiler was given."""

    def __init__(self, folder: Path, name: str = "qwen3-32b") -> None:
        self.image: Image = image_of(folder, name)
        self.log = folder / "log"
        self.image.module(one_layer.LOADERS["nxdi-v0"], LOADER)
        self.image.module(one_layer.APPLICATION[0], f"LOG = {str(self.log)!r}\n{APPLICATION}")
        for arm in self.image.arms:
            self.model(arm, {})

    def model(self, arm: dict[str, Any], about: dict[str, Any]) -> None:
        """Every arm its own target, so that one ends otherwise than another."""
        own = f"{arm['engine']['model']}-{arm['name']}"
        self.image.checkpoint(arm["engine"]["model"], DEEP, SHAPES)
        arm["engine"]["model"] = (
            own if not arm["engine"]["model"].endswith(arm["name"]) else arm["engine"]["model"]
        )
        self.image.checkpoint(arm["engine"]["model"], {**DEEP, **about}, SHAPES)

    def run(self, *options: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cdk8s_charts.one_layer", *self.image.files(), *options],
            env={"PYTHONPATH": f"{self.image.site}:{ROOT}", "TMPDIR": str(self.image.site.parent)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
        )

    def ask(self, *options: str) -> tuple[int, list[dict[str, str]]]:
        done = self.run(*options)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def compiled(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def test_each_arm_is_compiled_as_it_is_but_for_its_depth_and_its_shards(copies: Copies) -> None:
    assert copies.ask() == (TAKEN, [])
    plain, drafted = copies.compiled()
    for arm, copy in zip(copies.image.arms, (plain, drafted), strict=True):
        whole = arm["engine"]["override_neuron_config"]
        assert whole["save_sharded_checkpoint"]
        assert copy["given"] == {**whole, "save_sharded_checkpoint": False}
        assert copy["target"] == {**DEEP, "num_hidden_layers": 1, "layer_types": ["full"]}
        assert copy["files"] == ["config.json", "model.safetensors"]
        assert (copy["most"], Path(copy["path"]).parent) == (1, Path(copy["here"]))
        assert not Path(copy["here"]).exists()
    assert plain["draft"] is None
    assert drafted["draft"]["num_hidden_layers"] == 1


def test_the_target_of_an_eagle3_head_keeps_the_layers_that_it_hands_on(copies: Copies) -> None:
    arm = copies.image.arms[-1]
    arm["mode"] = "eagle3"
    copies.image.checkpoint(arm["engine"]["model"], {**DEEP, "num_hidden_layers": 32}, SHAPES)
    assert copies.ask() == (TAKEN, [])
    assert [copy["target"]["num_hidden_layers"] for copy in copies.compiled()] == [1, 7]


def test_what_the_compiler_refuses_of_one_arm_is_one_line_and_the_others_are_compiled(copies: Copies) -> None:
    plain, drafted = copies.image.arms
    copies.model(
        plain, {"ends": f'if about(self.model)["hidden_size"] == 8: raise RuntimeError("{COMPILER}")'}
    )
    code, (line,) = copies.ask()
    assert (code, line["arm"], line["key"]) == (REFUSED, plain["name"], "to compile one layer")
    assert line["why"] == "RuntimeError: 12:01 ERROR: [NCC_EBIR023] too wide"
    small, other = copies.compiled()  # a small plain model shows that this image compiles here at all
    assert (small["target"]["num_attention_heads"], small["given"].get("tp_degree"), small["draft"]) == (
        32,
        None,
        None,
    )
    assert other["given"]["tp_degree"] == drafted["engine"]["override_neuron_config"]["tp_degree"]


def test_what_is_found_is_the_end_of_the_log_of_which_a_run_reads_500_lines(copies: Copies) -> None:
    copies.image.module("vllm.entrypoints.openai.cli_args", "raise RuntimeError('no device')")
    refused = 'if about(self.model)["hidden_size"] == 8: raise RuntimeError("[NCC_1] refused")'
    for arm, ends in zip(copies.image.arms, (refused, r"print('.\n' * 600)"), strict=True):
        copies.model(arm, {"ends": ends})
    *noise, cannot, refusal = copies.run(stderr=subprocess.STDOUT).stdout.splitlines()
    assert len(noise) > 600
    assert json.loads(cannot)["part"] == "server arguments"
    assert json.loads(refusal)["why"] == "RuntimeError: [NCC_1] refused"


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("raise RuntimeError('nrt_init: no /dev/neuron0')", "nrt_init"),
        ("raise OSError('no space')", "OSError: no space"),
        ("raise RuntimeError('[F137] neuronx-cc was forcibly killed')", "F137"),
        ("os.kill(os.getpid(), 9)", "its process ended with code -9"),
    ],
)
def test_a_copy_that_asks_for_a_device_or_is_killed_says_nothing_and_stops_no_other(
    ends: str, why: str, copies: Copies
) -> None:
    copies.model(copies.image.arms[0], {"ends": ends})
    code, (line,) = copies.ask()
    assert (code, line["part"]) == (CANNOT_SAY, f"one layer of {copies.image.arms[0]['name']}")
    assert why in line["why"]
    assert len(copies.compiled()) == 1


def test_an_image_that_compiles_nothing_here_refuses_no_arm(copies: Copies) -> None:
    for arm in copies.image.arms:
        copies.model(arm, {"ends": "raise RuntimeError('libxml2.so.2 is missing')"})
    code, (line,) = copies.ask()
    assert code == CANNOT_SAY
    assert line["why"].count("libxml2.so.2 is missing") == 2
    assert "nor a small plain model" in line["why"]


def test_a_copy_ends_before_the_kernel_ends_the_whole_pod(copies: Copies, tmp_path: Path) -> None:
    group = tmp_path / "cgroup"
    group.mkdir()
    (group / "memory.max").write_text("1000\n", encoding="utf-8")
    (group / "memory.stat").write_text("anon 900\nfile 5000\nshmem 50\n", encoding="utf-8")
    copies.model(copies.image.arms[0], {"ends": "time.sleep(600)"})
    del copies.image.arms[1:]
    code, (line,) = copies.ask("--cgroup", str(group))
    assert (code, line["why"]) == (CANNOT_SAY, "it needs more memory than this pod has (95% used)")
    (group / "memory.max").write_text("max\n", encoding="utf-8")
    code, (line,) = copies.ask("--cgroup", str(group), "--seconds", "1")
    assert (code, line["why"]) == (CANNOT_SAY, "the time for all copies is over")


def test_nothing_is_compiled_where_the_image_refuses_an_argument(copies: Copies) -> None:
    copies.image.arms[0]["engine"]["no_such_thing"] = 1
    code, lines = copies.ask()
    assert (code, [line["key"] for line in lines]) == (REFUSED, ["no_such_thing"])
    assert not copies.log.exists()


def test_a_loader_of_another_shape_is_not_called(copies: Copies) -> None:
    copies.image.module(one_layer.LOADERS["nxdi-v0"], LOADER.replace("lora_serving_config)", "unheard_of)"))
    code, (line,) = copies.ask()
    assert (code, line["why"]) == (CANNOT_SAY, "its loader asks for unheard_of")
