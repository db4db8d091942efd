"""The program that asks an image, in a tree of modules that look like one: vLLM's recorded options, Neuron's recorded keys."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts import image_probe
from tests.cdk8s_charts.made_up_image import SHAPES, SIZES, Image, image_of
from tests.cdk8s_charts.objects import RENDERED, committed, experiment_at, named, pods_of
from tests.conftest import ROOT
from trnspec.experiment.catalogue.runtimes import RUNTIMES

PROGRAMS = ("image_probe.py", "one_layer.py", "draft_heads.py", "image_code.py")
CHECKPOINTS = ROOT / "tests" / "engine" / "checkpoints"


def _asked(python: str, files: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As the pod runs it: from a folder with the programs alone, without this project's packages."""
    folder = Path(files[0]).parent
    (folder / "cdk8s_charts").mkdir()
    for name in PROGRAMS:
        shutil.copy(ROOT / "cdk8s_charts" / name, folder / "cdk8s_charts")
    return subprocess.run(
        [python, "-m", "cdk8s_charts.image_probe", *files],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_program_needs_nothing_but_the_image(tmp_path: Path) -> None:
    image = image_of(tmp_path)
    done = _asked(sys.executable, image.files(), {"PYTHONPATH": str(image.site)})
    (folders,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (image_probe.TAKEN, "")
    assert "NEURON_COMPILED_ARTIFACTS=/artifacts/" in folders


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_an_image_as_recorded_takes_what_the_rendered_manifests_ask_it(path: Path, tmp_path: Path) -> None:
    """The files that each Job's command names, from the ConfigMaps that it mounts."""
    objects, told = committed(path), list[str]()
    maps = {name: item["data"] for name, item in named(objects, "ConfigMap").items()}
    for pod in pods_of(objects):
        if not pod.name.startswith("arguments-"):
            continue
        (container,) = pod.containers
        volumes = {
            name: volume["configMap"]["name"] for name, volume in pod.volumes.items() if "configMap" in volume
        }
        mounts = {one["name"]: one for one in container["volumeMounts"]}
        mounted = {mounts[name]["mountPath"]: maps[source] for name, source in volumes.items()}
        programs = mounted.pop(f"{container['workingDir']}/cdk8s_charts")
        assert programs == {
            name: (ROOT / "cdk8s_charts" / name).read_text(encoding="utf-8") for name in PROGRAMS
        }
        assert mounts["checkpoints"] == {"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True}
        assert pod.spec["securityContext"]["runAsNonRoot"]
        _, *words = container["command"]
        assert words[:2] == ["-m", "cdk8s_charts.one_layer"]
        texts = [mounted[folder][name] for folder, _, name in (word.rpartition("/") for word in words[2:])]
        arms = [arm for text in texts for arm in json.loads(text)]
        told += [arm["name"] for arm in arms]
        (runtime,) = (one for one in RUNTIMES.values() if one.image == container["image"])
        assert Image(tmp_path / pod.name, runtime, arms).ask() == (image_probe.TAKEN, [])
    names = [arm.name for arm in experiment_at(path).arms]
    assert sorted(told) == sorted(names)


Spoil = Callable[[Any], object]


def _served(*words: str) -> Spoil:
    return lambda arm: arm["serve"].extend(words)


def _replaced(flag: str, value: str) -> Spoil:
    return lambda arm: arm["serve"].__setitem__(arm["serve"].index(flag) + 1, value)


def _set(part: str, **values: Any) -> Spoil:
    return lambda arm: arm[part].update(values)


def _drafting(**values: Any) -> Spoil:
    return lambda arm: arm["engine"]["speculative_config"].update(values)


SPLIT = '{\n "tp_degree": 32\n}'
DRAFTING = {"model": "x", "window": 7}
REFUSED: list[tuple[Spoil, str, str]] = [
    (_served("--no-such-thing", "1"), "--no-such-thing", "no such option"),
    (_served("--max-model-le", "1"), "--max-model-le", "no such option"),  # the beginning of one
    (_replaced("--max-model-len", "many"), "--max-model-len", "invalid int value: 'many'"),
    (_replaced("--override-neuron-config", SPLIT), "--override-neuron-config", "KEY=VALUE"),
    (_served("--tool-call-parser", "hermess"), "arguments", "hermess"),
    (_served("--reasoning-parser", "step3"), "--reasoning-parser", "invalid choice: 'step3'"),
    (_served("--enable-auto-tool-choice"), "--enable-auto-tool-choice", "requires --tool-call-parser"),
    (_set("engine", no_such_thing=1), "no_such_thing", "no such option"),
    (_set("engine", speculative_config=DRAFTING), "speculative_config.window", "no such key"),
    (_set("config", no_such_key=1), "no_such_key", "would leave it out"),
    (_set("config", torch_dtype="float7"), "torch_dtype", "AssertionError: Unsupported dtype: float7"),
    (_drafting(max_model_len=2048), "engine config", "longer than its target"),
    (_drafting(model="/nowhere"), "engine config", "OSError: no config.json in /nowhere"),
]
OWN_FUNCTIONS: list[tuple[Spoil, str, str]] = [
    (_served("--reasoning-parser", "qwen"), "arguments", "qwen"),  # its parser has no choices
    (_set("config", decode_context_length_buckets=[1024]), "decode_context_length_buckets", "strictly less"),
    (_set("config", num_seqs_buckets=[2]), "num_seqs_buckets", "Last bucket must equal"),
    (_set("config", num_batched_tokens_buckets=[512]), "num_batched_tokens_buckets", "Last bucket must"),
]
"""Of a later vLLM and the native plugin."""
ON_DEVICE = _set("config", on_device_sampling_config={"all_greedy": True})
ON_HOST = _set("config", on_device_sampling_config=None)
DRAFTERS: list[tuple[Spoil, str, str]] = [
    (ON_HOST, "engine config", "asynchronous scheduling needs sampling on the device"),
    (
        lambda arm: (ON_HOST(arm), arm["engine"].update(async_scheduling=False)),
        "engine config",
        "drafting needs sampling on the device",
    ),
    (_drafting(method="ngram"), "engine config", "no drafter for method ngram"),
]
"""What the plugin's worker says before it loads anything."""


@pytest.mark.parametrize(
    ("experiment", "arm", "spoil", "key", "why"),
    [
        *(("qwen3-32b", "qwen-sd-vllm", *one) for one in REFUSED),
        *(("qwen3-32b-today", "qwen-eagle3", *one) for one in OWN_FUNCTIONS),
        *(("llama-3.1-8b-eagle3", "llama-eagle3", *one) for one in DRAFTERS),
    ],
)
def test_what_the_image_refuses_names_arm_key_and_reason(
    experiment: str, arm: str, spoil: Spoil, key: str, why: str, tmp_path: Path
) -> None:
    image = image_of(tmp_path, experiment)
    spoil(image.arms[-1])
    code, (line,) = image.ask()
    assert code == image_probe.REFUSED
    assert (line["arm"], line["key"]) == (arm, key)
    assert why in line["why"]


@pytest.mark.parametrize(
    ("experiment", "about", "why"),
    [
        ("qwen3-32b", {"num_attention_heads": 16}, []),
        ("qwen3-32b", {"num_hidden_layers": 0}, ["ValueError: a model without layers"]),
        ("llama-3.1-8b-eagle3", {"num_attention_heads": 3}, ["attention heads (3) must be divisible"]),
    ],
)
def test_the_rule_of_vllm_for_attention_heads_refuses_only_where_the_image_keeps_it(
    experiment: str, about: dict[str, int], why: list[str], tmp_path: Path
) -> None:
    image = image_of(tmp_path, experiment)
    del image.arms[:-1]
    drafting = image.arms[0]["engine"]["speculative_config"]
    image.checkpoint(drafting["model"], SIZES | about, SHAPES)
    code, lines = image.ask()
    assert [reason in line["why"] for reason, line in zip(why, lines, strict=True)] == [True] * len(why)
    assert code == (image_probe.REFUSED if why else image_probe.TAKEN)


@pytest.mark.parametrize(("module", "code"), [("vllm.platforms.cpu", 3), ("vllm_neuron.platform", 0)])
def test_the_plugin_with_nxd_inference_is_judged_on_its_own_platform_only(
    module: str, code: int, tmp_path: Path
) -> None:
    image = image_of(tmp_path)
    for arm in image.arms:
        arm["dialect"] = "nxdi-v1"
    image.module(module, "class Here:\n    pass\n")
    (image.site / "vllm/platforms").mkdir(exist_ok=True)
    text = f"from {module} import Here\ncurrent_platform = Here()\n"
    (image.site / "vllm/platforms/__init__.py").write_text(text, encoding="utf-8")
    found, lines = image.ask()
    assert found == code
    assert [line["part"] for line in lines] == ["engine config"] * bool(code)
    _drafting(max_model_len=2048)(image.arms[-1])
    assert image.ask()[0] == (image_probe.CANNOT_SAY if code else image_probe.REFUSED)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("OSError('no space left on device')", 3),
        ("AssertionError('no device')", 3),
        ("FileNotFoundError('/dev/neuron0')", 3),
        ("OSError('no tokenizer in ' + self.model)", 1),
        ("AssertionError(self.model + ' has no layers')", 1),
    ],
)
def test_an_error_of_the_machine_refuses_no_arm(raised: str, code: int, tmp_path: Path) -> None:
    image = image_of(tmp_path)
    path = image.site / "vllm/engine/arg_utils.py"
    first = "    drafting = self.speculative_config\n"
    text = path.read_text(encoding="utf-8").replace(
        first, f"{first}    if drafting:\n        raise {raised}\n"
    )
    path.write_text(text, encoding="utf-8")
    found, (line,) = image.ask()
    assert found == code
    assert raised.partition("(")[0] in line["why"]


PLUGIN = """
import os
if root := os.environ.get("VLLM_CACHE_ROOT"):
    os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"] = root + "/rank_0/neff"
"""
RETIRED = """
import os
def reject_retired_configuration():
    if names := [name for name in os.environ if name.startswith("NEURON_LIBTORCH_")]:
        raise ValueError(f"Retired lite configuration is set: {names}; remove these settings.")
"""


@pytest.mark.parametrize(
    ("variable", "why"),
    [
        ("NEURON_RT_VISIBLE_CORES", "vLLM Neuron's worker ends where it is set"),
        ("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "Retired lite configuration is set"),
    ],
)
def test_a_variable_that_the_plugin_does_not_start_with_is_refused(
    variable: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image = image_of(tmp_path, "llama-3.1-8b-eagle3")
    (image.site / "vllm_neuron/__init__.py").write_text(PLUGIN, encoding="utf-8")
    image.module("vllm_neuron.native", RETIRED)
    assert image.ask() == (image_probe.TAKEN, [])
    first = image.arms[0]
    line = f"{first['name']}: folders of what is compiled: "
    said = capfd.readouterr().err
    assert line in said
    assert f" TORCH_NEURONX_NEFF_CACHE_DIR={first['environment']['VLLM_CACHE_ROOT']}/rank_0/neff" in said
    image.arms[-1]["environment"][variable] = "0-3"
    code, (refusal,) = image.ask()
    assert (code, refusal["arm"], refusal["key"]) == (image_probe.REFUSED, image.arms[-1]["name"], variable)
    assert why in refusal["why"]


def test_a_plugin_that_cannot_be_imported_refuses_no_variable(tmp_path: Path) -> None:
    image = image_of(tmp_path, "llama-3.1-8b-eagle3")
    image.module("vllm_neuron.native", "raise RuntimeError('no device in NEURON_WORLD')")
    code, (line,) = image.ask()
    assert (code, line["part"]) == (image_probe.CANNOT_SAY, "settings")


NO_HEADS_WORDS = "and NxD Inference needs [32, 8], as the target has it"


@pytest.mark.parametrize(
    ("config", "shapes", "why"),
    [
        (
            {},
            {"lm_head.weight": [4, 8], "d2t": [4]},
            f"lm_head.weight is [4, 8] (it maps a vocabulary of its own: d2t), {NO_HEADS_WORDS}",
        ),
        ({}, {"lm_head.weight": None}, f"lm_head.weight is not in it, {NO_HEADS_WORDS}"),
        ({"tie_word_embeddings": True}, {"lm_head.weight": None}, ""),
        ({}, {"model.embed_tokens.weight": None}, f"embed_tokens.weight is not in it, {NO_HEADS_WORDS}"),
        ({"vocab_size": 4}, {}, "the head has vocab_size 4, its target 32; they must be the same"),
        ({"hidden_size": 4}, {}, "the head has hidden_size 4, its target 8; they must be the same"),
    ],
)
def test_a_head_that_nxd_inference_cannot_load_is_refused_with_the_shapes_found(
    config: dict[str, Any], shapes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    image = image_of(tmp_path)
    arm = image.arms[-1]
    arm["mode"], path = "eagle3", arm["engine"]["speculative_config"]["model"]
    found = {name: shape for name, shape in (SHAPES | shapes).items() if shape}
    image.checkpoint(path, SIZES | config, found)
    code, lines = image.ask()
    assert [(line["arm"], line["why"]) for line in lines] == ([("qwen-sd-vllm", why)] if why else [])
    assert code == (image_probe.REFUSED if why else image_probe.TAKEN)


def test_a_window_that_a_dflash_head_was_not_trained_for_is_refused(tmp_path: Path) -> None:
    image = image_of(tmp_path, "qwen3-4b-dflash")
    image.arms = [arm for arm in image.arms if arm["mode"] == "dflash"]
    ON_DEVICE(image.arms[0])
    assert image.ask() == (image_probe.TAKEN, [])
    _drafting(num_speculative_tokens=7)(image.arms[0])
    code, (line,) = image.ask()
    assert (code, line["key"]) == (image_probe.REFUSED, "num_speculative_tokens")
    assert line["why"] == "the head's block_size is 16: num_speculative_tokens must be one less"


def test_weights_that_cannot_be_read_are_said_and_refuse_nothing(tmp_path: Path) -> None:
    image = image_of(tmp_path)
    image.arms[-1]["mode"] = "eagle"
    file = Path(image.arms[-1]["engine"]["speculative_config"]["model"], "model.safetensors")
    file.write_bytes(b"cut")
    code, (line,) = image.ask()
    assert (code, line["part"]) == (image_probe.CANNOT_SAY, "heads")
    assert "its weights cannot be read" in line["why"]


def test_every_head_is_read_and_one_that_cannot_be_hides_no_other(tmp_path: Path) -> None:
    image = image_of(tmp_path, "llama-3.1-8b-eagle3")
    arm = image.arms[-1]
    cut, foreign = (json.loads(json.dumps(arm)) | {"name": name} for name in ("cut", "foreign"))
    assert arm["mode"] == "eagle3"
    for other in (cut, foreign):
        other["engine"]["speculative_config"]["model"] += other["name"]
        image.checkpoint(other["engine"]["speculative_config"]["model"], SIZES, SHAPES)
    Path(cut["engine"]["speculative_config"]["model"], "model.safetensors").write_bytes(b"cut")
    foreign["mode"] = "dflash"
    image.arms = [cut, foreign]
    _, lines = image.ask()
    assert [line["arm"] for line in lines if "arm" in line] == ["foreign"]
    assert [line["part"] for line in lines if "its weights cannot be read" in line["why"]] == ["heads"]


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
    image = image_of(tmp_path)
    image.module(module, text)
    code, (line, *more) = image.ask()
    assert code == image_probe.CANNOT_SAY
    assert line["part"] == part
    assert line["why"]
    assert [one["part"] for one in more] == (["engine config"] if part == "engine options" else [])
    image.arms[0]["config" if part == "engine options" else "engine"]["no_such_key"] = 1
    code, lines = image.ask()
    assert code == image_probe.REFUSED
    assert [sorted(line) for line in lines[:2]] == [["arm", "key", "why"], ["part", "why"]]
