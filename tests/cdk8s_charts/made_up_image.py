"""An image made up of modules that look like one: vLLM's recorded options, Neuron's recorded keys, checkpoints beside them."""

from __future__ import annotations

import json
import struct
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts import image_probe
from cdk8s_charts.workloads import check_jobs
from tests.conftest import ROOT
from trnspec.experiment import load
from trnspec.experiment.catalogue.runtimes import Runtime

DATA = ROOT / "tests" / "data"
CLI = """
import argparse, json, re
def parsed(text):
    if not re.match("^{.*}$", text):  # as vLLM 0.9.1 has it
        raise argparse.ArgumentTypeError("Each item should be in the form KEY=VALUE")
    return json.loads(text)
TYPES = {"--max-model-len": int, "--max-num-seqs": int, "--override-neuron-config": parsed}
def make_arg_parser(parser):
    for name, about in TABLE.items():
        if name == "--help":
            continue
        more = {"action": "store_true"} if about.get("flag") else {"choices": about.get("choices"), "type": TYPES.get(name)}
        parser.add_argument(name, **more)
    return parser
def validate_parsed_serve_args(given):
    if given.enable_auto_tool_choice and not given.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
"""
PARSERS = """
class ToolParserManager:
    @classmethod
    def get_tool_parser(cls, name):
        return {name: object for name in NAMES}[name]
class ReasoningParserManager:
    get_reasoning_parser = ToolParserManager.get_tool_parser
"""
ARG_UTILS = """
import dataclasses, types
from vllm.config import ModelConfig
names = {name.lstrip("-").removeprefix("no-").replace("-", "_") for name in TABLE}
def create_engine_config(self):
    drafting = self.speculative_config
    for model in (self.model, *([drafting["model"]] if drafting else [])):
        if not pathlib.Path(model, "config.json").exists():
            raise OSError("no config.json in " + model)
        ModelConfig(model).verify_with_parallel_config(getattr(self, "tensor_parallel_size", None) or 1)
    if drafting and drafting["max_model_len"] > self.max_model_len:
        raise ValueError("1 validation error: Value error, longer than its target [type=value_error, input_value=x]")
    waits = getattr(self, "async_scheduling", None) is False
    given = getattr(self, "override_neuron_config", None)
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(model=self.model, override_neuron_config=given), parallel_config=None,
        scheduler_config=types.SimpleNamespace(
            async_scheduling=not waits, enable_chunked_prefill=getattr(self, "enable_chunked_prefill", None)
        ),
        speculative_config=drafting and types.SimpleNamespace(**drafting),
    )
fields = [(name, object, None) for name in sorted(names)]
EngineArgs = dataclasses.make_dataclass("EngineArgs", fields, namespace={"create_engine_config": create_engine_config})
"""
DRAFTER = """
def get_world_group():
    raise AssertionError("no process group")
class EagleProposer:
    def __init__(self, config, device, on_device):
        assert device == "cpu" and get_world_group() is None
        if not on_device:
            raise ValueError("drafting needs sampling on the device")
"""
DFLASH = """
from vllm_neuron.vllm.spec_decode import eagle
class DFlashProposer(eagle.EagleProposer):
    def __init__(self, config, device, on_device):
        super().__init__(config, device, on_device)
        if config.scheduler_config.async_scheduling:
            raise ValueError("DFlash schedules synchronously")
        if config.scheduler_config.enable_chunked_prefill is not False:
            raise ValueError("DFlash takes no chunked prefill")
"""
CONFIG = """
import dataclasses, json, pathlib
names = ("model", "method", "num_speculative_tokens", "max_model_len")
SpeculativeConfig = dataclasses.make_dataclass("SpeculativeConfig", names)
class ModelConfig:
    def __init__(self, model):
        self.about = json.loads(pathlib.Path(model, "config.json").read_text())
    def verify_with_parallel_config(self, degree):
        heads, layers = self.about.get("num_attention_heads", 0), self.about.get("num_hidden_layers", 1)
        if heads % degree:
            raise ValueError(f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({degree}).")
        if not layers:
            raise ValueError("a model without layers")
"""
NXDI = """
class NeuronConfig:
    def __init__(self, **given):
        if given.get("torch_dtype", "bfloat16") not in ("bfloat16", "float16"):
            raise AssertionError("Unsupported dtype: " + given["torch_dtype"])
        for name in TABLE["neuron_config"]:
            setattr(self, name, given.pop(name, None))
"""
NATIVE = """
import types
BUCKETS = ("num_batched_tokens_buckets", "num_seqs_buckets", "decode_context_length_buckets")
class NeuronConfig(types.SimpleNamespace):
    @classmethod
    def from_dict(cls, given):
        return cls(**{name: given.get(name) for name in (*BUCKETS, "on_device_sampling_config")})
"""
BUCKETS = """
def ends(buckets, most):
    if buckets[-1] != most:
        raise ValueError(f"Last bucket must equal {most}, got {buckets[-1]}")
validate_num_batched_tokens_buckets = validate_num_seqs_buckets = ends
def validate_decode_context_length_buckets(buckets, most):
    if buckets[-1] >= most:
        raise ValueError(f"{buckets[-1]} must be strictly less than max_model_len={most}")
"""


SIZES = {"vocab_size": 32, "hidden_size": 8}
SHAPES = {"model.embed_tokens.weight": [32, 8], "lm_head.weight": [32, 8], "model.fc.weight": [8, 24]}


def _table(path: Path) -> str:
    """A line of a module that reads it."""
    return f"import json, pathlib; TABLE = json.loads(pathlib.Path({str(path)!r}).read_text())\n"


class Image:
    def __init__(self, root: Path, runtime: Runtime, arms: list[dict[str, Any]]) -> None:
        self.site, self.arms = root / "site", json.loads(json.dumps(arms))
        table = _table(DATA / "vllm-options" / f"{runtime.vllm}.json")
        self.module("vllm.utils", "import argparse\nFlexibleArgumentParser = argparse.ArgumentParser\n")
        self.module("vllm.entrypoints.openai.cli_args", table + CLI)
        self.module(
            "vllm.entrypoints.openai.tool_parsers", f"NAMES = {sorted(runtime.tool_call_parsers)}{PARSERS}"
        )
        self.module("vllm.reasoning", f"NAMES = {sorted(runtime.reasoning_parsers)}{PARSERS}")
        self.module("vllm.engine.arg_utils", table + ARG_UTILS)
        self.module("vllm.config", CONFIG)
        if runtime.dialect == "native":
            self.module("vllm_neuron.vllm.spec_decode.eagle", DRAFTER)
            self.module("vllm_neuron.vllm.spec_decode.dflash", DFLASH)
            self.module("torch", "device = str\n")
            self.module("vllm_neuron.model.neuron_config", NATIVE)
            self.module("vllm_neuron.utils.bucket_utils", BUCKETS)
        else:
            keys = _table(
                ROOT / "src/trnspec/experiment/catalogue/neuron_config" / f"{runtime.config_keys}.json"
            )
            self.module("neuronx_distributed_inference.models.config", keys + NXDI)
        for arm in self.arms:
            self.fetched(arm)

    def module(self, name: str, text: str) -> None:
        *packages, last = name.split(".")
        folder = self.site
        for package in packages:
            folder /= package
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{last}.py").write_text(text, encoding="utf-8")

    def fetched(self, arm: dict[str, Any]) -> None:
        """The arm's models where it looks for them, a head as NxD Inference and DFlash want it."""
        for options in [arm["engine"], arm["engine"].get("speculative_config")]:
            if options:
                options["model"] = f"{self.site}{options['model']}"
                block = 1 + options.get("num_speculative_tokens", 0)
                self.checkpoint(options["model"], {**SIZES, "block_size": block}, SHAPES)

    def checkpoint(self, path: str, config: dict[str, Any], shapes: dict[str, list[int]]) -> None:
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        about = {name: {"dtype": "BF16", "shape": shape} for name, shape in shapes.items()}
        header = json.dumps({"__metadata__": {"format": "pt"}, **about}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    def ask(self) -> tuple[int, list[dict[str, str]]]:
        told = StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(told):
            patch.syspath_prepend(str(self.site))
            patch.setenv("PYTHONPATH", str(self.site))
            code = image_probe.main(self.files())
        for name, module in [*sys.modules.items()]:
            if str(getattr(module, "__file__", "")).startswith(str(self.site)):
                del sys.modules[name]
        return code, [json.loads(line) for line in told.getvalue().splitlines()]

    def files(self) -> list[str]:
        """What it is asked, in two parts."""
        half = len(self.arms) // 2
        files = [self.site / "first.json", self.site / "rest.json"]
        for file, arms in zip(files, (self.arms[:half], self.arms[half:]), strict=True):
            file.write_text(json.dumps(arms), encoding="utf-8")
        return [*map(str, files)]


def image_of(folder: Path, name: str = "qwen3-32b") -> Image:
    experiment = load(ROOT / "experiments" / f"{name}.yaml")
    runtime = experiment.runtimes[0]
    return Image(folder, runtime, check_jobs.asked(experiment, runtime))
