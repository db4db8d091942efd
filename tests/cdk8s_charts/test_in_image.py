"""The program that asks an image, in a tree of modules that look like one: vLLM's recorded options, Neuron's recorded keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts import in_image
from cdk8s_charts.vllm_command import compile_argv, serve_argv
from cdk8s_charts.workloads import proofs
from experiment import load
from experiment.catalogue.runtimes import RUNTIMES, Runtime
from experiment.compilation import compile_config
from tests.cdk8s_charts.objects import RENDERED, committed, experiment_at, named, pods_of
from tests.conftest import ROOT

ENGINE = ROOT / ".lab" / "venv" / "bin" / "python"
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
"""
ARG_UTILS = """
import dataclasses
names = {name.lstrip("-").removeprefix("no-").replace("-", "_") for name in TABLE}
EngineArgs = dataclasses.make_dataclass("EngineArgs", [(name, object, None) for name in sorted(names)])
"""
CONFIG = """
import dataclasses
names = ("model", "method", "num_speculative_tokens", "max_model_len")
SpeculativeConfig = dataclasses.make_dataclass("SpeculativeConfig", names)
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


def _table(path: Path) -> str:
    """A line of a module that reads it."""
    return f"import json, pathlib; TABLE = json.loads(pathlib.Path({str(path)!r}).read_text())\n"


class Image:
    """What the interpreter of an image can import, and what its Job is asked."""

    def __init__(self, root: Path, runtime: Runtime, arms: list[dict[str, Any]]) -> None:
        self.site, self.arms = root / "site", json.loads(json.dumps(arms))
        table = _table(DATA / "vllm-options" / f"{runtime.vllm}.json")
        self.module("vllm.utils", "import argparse\nFlexibleArgumentParser = argparse.ArgumentParser\n")
        self.module("vllm.entrypoints.openai.cli_args", table + CLI)
        self.module("vllm.engine.arg_utils", table + ARG_UTILS)
        self.module("vllm.config", CONFIG)
        if runtime.dialect == "native":
            self.module("vllm_neuron.model.neuron_config", NATIVE)
            self.module("vllm_neuron.utils.bucket_utils", BUCKETS)
        else:
            keys = _table(ROOT / "experiment/catalogue/neuron_config" / f"{runtime.config_keys}.json")
            self.module("neuronx_distributed_inference.models.config", keys + NXDI)

    def module(self, name: str, text: str) -> None:
        *packages, last = name.split(".")
        folder = self.site
        for package in packages:
            folder /= package
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{last}.py").write_text(text, encoding="utf-8")

    def ask(self) -> tuple[int, list[dict[str, str]]]:
        """What the program says with the image's packages."""
        told = StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(told):
            patch.syspath_prepend(str(self.site))
            code = in_image.main(self.files())
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


def _image(folder: Path, name: str = "qwen3-32b") -> Image:
    """Of the first runtime of an experiment."""
    experiment = load(ROOT / "experiments" / f"{name}.yaml")
    runtime = proofs.runtimes(experiment)[0]
    return Image(folder, runtime, proofs.asked(experiment, runtime))


def _asked(python: str, files: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As the pod runs it: a file of its own, without this project's packages."""
    return subprocess.run(
        [python, str(Path(in_image.__file__)), *files],
        env=environment,
        cwd=Path(files[0]).parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_program_needs_nothing_but_the_image(tmp_path: Path) -> None:
    image = _image(tmp_path)
    done = _asked(sys.executable, image.files(), {"PYTHONPATH": str(image.site)})
    assert (done.returncode, done.stdout, done.stderr) == (in_image.TAKEN, "", "")


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_an_image_as_recorded_takes_what_the_rendered_manifests_ask_it(path: Path, tmp_path: Path) -> None:
    """The files that each Job's command names, from the ConfigMaps that it mounts."""
    objects, told = committed(path), list[str]()
    maps = {name: item["data"] for name, item in named(objects, "ConfigMap").items()}
    for pod in pods_of(objects):
        if not pod.name.startswith("arguments-"):
            continue
        (container,) = pod.containers
        volumes = {name: maps[volume["configMap"]["name"]] for name, volume in pod.volumes.items()}
        mounted = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
        paths = [word.rpartition("/") for word in container["command"][1:]]
        program, *texts = (mounted[folder][name] for folder, _, name in paths)
        assert program == Path(in_image.__file__).read_text(encoding="utf-8")
        arms = [arm for text in texts for arm in json.loads(text)]
        told += [arm["name"] for arm in arms]
        (runtime,) = (one for one in RUNTIMES.values() if one.image == container["image"])
        assert Image(tmp_path / pod.name, runtime, arms).ask() == (in_image.TAKEN, [])
    names = [arm.name for arm in experiment_at(path).served_arms if arm.serving.devices]
    assert sorted(told) == sorted(names)


Spoil = Callable[[Any], object]


def _served(*words: str) -> Spoil:
    return lambda arm: arm["serve"].extend(words)


def _replaced(flag: str, value: str) -> Spoil:
    return lambda arm: arm["serve"].__setitem__(arm["serve"].index(flag) + 1, value)


def _set(part: str, **values: Any) -> Spoil:
    return lambda arm: arm[part].update(values)


SPLIT = '{\n "tp_degree": 32\n}'
DRAFTING = {"model": "x", "window": 7}
REFUSED: list[tuple[Spoil, str, str]] = [
    (_served("--no-such-thing", "1"), "--no-such-thing", "no such option"),
    (_served("--max-model-le", "1"), "--max-model-le", "no such option"),  # the beginning of one
    (_replaced("--max-model-len", "many"), "--max-model-len", "invalid int value: 'many'"),
    (_replaced("--override-neuron-config", SPLIT), "--override-neuron-config", "KEY=VALUE"),
    (_set("engine", no_such_thing=1), "no_such_thing", "no such option"),
    (_set("engine", speculative_config=DRAFTING), "speculative_config.window", "no such key"),
    (_set("config", no_such_key=1), "no_such_key", "would leave it out"),
    (_set("config", torch_dtype="float7"), "torch_dtype", "AssertionError: Unsupported dtype: float7"),
]
OWN_FUNCTIONS: list[tuple[Spoil, str, str]] = [
    (_set("config", decode_context_length_buckets=[1024]), "decode_context_length_buckets", "strictly less"),
    (_set("config", num_seqs_buckets=[2]), "num_seqs_buckets", "Last bucket must equal"),
    (_set("config", num_batched_tokens_buckets=[512]), "num_batched_tokens_buckets", "Last bucket must"),
]
"""Of the native plugin, which judge its buckets."""


@pytest.mark.parametrize(
    ("experiment", "arm", "spoil", "key", "why"),
    [
        *(("qwen3-32b", "qwen-sd-vllm", *one) for one in REFUSED),
        *(("qwen3-32b-today", "qwen-eagle3", *one) for one in OWN_FUNCTIONS),
    ],
)
def test_what_the_image_refuses_names_arm_key_and_reason(
    experiment: str, arm: str, spoil: Spoil, key: str, why: str, tmp_path: Path
) -> None:
    image = _image(tmp_path, experiment)
    spoil(image.arms[-1])
    code, (line,) = image.ask()
    assert code == in_image.REFUSED
    assert (line["arm"], line["key"]) == (arm, key)
    assert why in line["why"]


WITHOUT_A_MODEL_ALONE = """
def make_arg_parser(parser):
    parser.add_argument("--needed", required=True)
    return parser
"""
NO_DEVICE = """
class NeuronConfig:
    def __init__(self, **given):
        raise AssertionError("no device")
"""


@pytest.mark.parametrize(
    ("module", "text", "part"),
    [
        ("vllm.entrypoints.openai.cli_args", "raise RuntimeError('no device type')", "server arguments"),
        ("vllm.entrypoints.openai.cli_args", WITHOUT_A_MODEL_ALONE, "server arguments"),
        ("vllm.engine.arg_utils", "class EngineArgs: pass", "engine options"),
        ("neuronx_distributed_inference.models.config", "raise SystemExit('no device')", "neuron config"),
        ("neuronx_distributed_inference.models.config", NO_DEVICE, "neuron config"),
    ],
)
def test_code_that_does_not_load_without_a_device_says_nothing_about_the_arms_and_hides_no_refusal(
    module: str, text: str, part: str, tmp_path: Path
) -> None:
    image = _image(tmp_path)
    image.module(module, text)
    code, (line,) = image.ask()
    assert code == in_image.CANNOT_SAY
    assert line["part"] == part
    assert line["why"]
    image.arms[0]["config" if part == "engine options" else "engine"]["no_such_key"] = 1
    code, lines = image.ask()
    assert code == in_image.REFUSED
    assert [sorted(line) for line in lines] == [["arm", "key", "why"], ["part", "why"]]


@pytest.mark.skipif(
    not ENGINE.exists(), reason="no vLLM: the lab's engine is not installed (scripts/lab does it)"
)
def test_a_real_vllm_takes_the_arms_of_the_lab_and_names_what_it_does_not(tmp_path: Path) -> None:
    arms: list[dict[str, Any]] = [
        {
            "name": arm.name,
            "dialect": arm.runtime.dialect,
            "serve": serve_argv(arm),
            "engine": json.loads(compile_argv(arm)[-1]),
            "config": compile_config(arm),
        }
        for arm in load(ROOT / "experiments" / "lab-tiny.yaml").arms
    ]

    def found() -> tuple[int, list[str]]:
        (tmp_path / "asked.json").write_text(json.dumps(arms), encoding="utf-8")
        done = _asked(str(ENGINE), [str(tmp_path / "asked.json")], os.environ)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        return done.returncode, [line["key"] for line in lines]

    assert found() == (in_image.TAKEN, [])
    arms[0]["serve"] += ["--no-such-thing", "1"]
    arms[1]["engine"]["speculative_config"]["window"] = 3
    assert found() == (in_image.REFUSED, ["--no-such-thing", "speculative_config.window"])
