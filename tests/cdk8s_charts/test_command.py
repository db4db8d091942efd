"""argv against the parser of the vLLM version that the image carries, and the artifact check as a shell runs it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cdk8s_charts.engine.batch_script import batch_argv
from cdk8s_charts.engine.command import compile_argv, compile_environment, serve_argv, serve_environment
from cdk8s_charts.parity import options
from experiment import Arm, compilation, load
from experiment.catalogue.runtimes import RUNTIMES
from experiment.compilation import artifact_key, compile_config, compiler_environment
from tests.conftest import ROOT


def _arm(parameters: Any) -> Arm:
    arm: Arm = parameters.values[0]
    return arm


OPTIONS = {
    "nxdi-v0": "vllm-options/0.9.1.json",
    "nxdi-v1": "vllm-options/0.16.0.json",
    "native": "vllm-options/0.29.0.json",
    "vllm": "vllm-options/0.32.0.json",
}
NEURON_KEYS = {
    "nxdi-v0": ("nxdi-0.6.10598", "NeuronConfig", "OnDeviceSamplingConfig"),
    "nxdi-v1": ("nxdi-4bcdc54-2026-07", "NeuronConfig", "OnDeviceSamplingConfig"),
    "native": ("native-2.33", "neuron_config", "on_device_sampling_config"),
}
ALL_ARMS = [
    pytest.param(arm, id=f"{path.stem}-{arm.name}")
    for path in sorted((ROOT / "experiments").glob("*.yaml"))
    for arm in load(path).arms
]
SERVED = [parameters for parameters in ALL_ARMS if not _arm(parameters).batch_only]


def neuron_keys(dialect: str) -> tuple[set[str], set[str]]:
    """Of the configuration, and of the sampling configuration in it."""
    file, whole, sampling = NEURON_KEYS[dialect]
    table = json.loads((ROOT / "experiment/catalogue/neuron_config" / f"{file}.json").read_text())
    return set(table[whole]), set(table[sampling])


def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((ROOT / "tests/data" / name).read_text())
    return table


def test_the_experiments_speak_every_dialect() -> None:
    assert {_arm(parameters).runtime.dialect for parameters in ALL_ARMS} == set(OPTIONS)
    assert {runtime.dialect for runtime in RUNTIMES.values()} == set(OPTIONS)


@pytest.mark.parametrize("arm", SERVED)
def test_every_option_of_a_server_is_one_of_its_vllm_and_fits_it(arm: Arm) -> None:
    known = _table(OPTIONS[arm.runtime.dialect])
    for name, value in options(serve_argv(arm)).items():
        if name:
            assert name in known, f"{name} is unknown to vLLM {arm.runtime.vllm}"
            assert known[name].get("flag", False) == (value is True), name
            assert "choices" not in known[name] or value in known[name]["choices"]


@pytest.mark.parametrize("arm", SERVED)
def test_an_object_on_a_servers_command_line_is_json_as_vllm_0_9_1_knows_it(arm: Arm) -> None:
    """Its parser looks for `^{.*}$` before it reads JSON, and takes what has a line break for KEY=VALUE pairs."""
    for word in serve_argv(arm):
        if "{" in word:
            assert re.match("^{.*}$", word), word
            json.loads(word)


@pytest.mark.parametrize("arm", SERVED)
def test_a_compilation_is_given_the_engine_options_of_its_server(arm: Arm) -> None:
    compiled = json.loads(compile_argv(arm)[-1])
    served = options(serve_argv(arm))
    known = _table(OPTIONS[arm.runtime.dialect])
    assert compiled.pop("model") == serve_argv(arm)[2]
    for name, value in compiled.items():
        flag = f"--{name.replace('_', '-')}"
        assert flag in known
        if name == "override_neuron_config":
            assert served[flag].items() <= value.items(), "the server is told a part of what was compiled"
        elif isinstance(value, bool):
            assert (flag in served) == value
        else:
            assert served[flag] == (value if isinstance(value, dict) else str(value))


@pytest.mark.parametrize("arm", ALL_ARMS)
def test_every_key_of_a_neuron_config_is_known_to_its_reader(arm: Arm) -> None:
    config = compile_config(arm)
    if arm.runtime.dialect == "vllm":
        assert config == {}
        return
    keys, of_sampling = neuron_keys(arm.runtime.dialect)
    assert config.keys() <= keys
    assert config["on_device_sampling_config"].keys() <= of_sampling


@pytest.mark.parametrize(
    "arm", [parameters for parameters in ALL_ARMS if _arm(parameters).runtime.dialect == "native"]
)
def test_the_native_plugin_is_given_buckets_that_it_takes(arm: Arm) -> None:
    """The last bucket of tokens and of sequences is the engine's limit; a bucket of context is below `max_model_len`."""
    engine, config = json.loads(compile_argv(arm)[-1]), compile_config(arm)
    assert config["num_batched_tokens_buckets"][-1] == engine["max_num_batched_tokens"]
    assert config["num_seqs_buckets"][-1] == engine["max_num_seqs"]
    assert all(length < engine["max_model_len"] for length in config.get("decode_context_length_buckets", ()))


@pytest.mark.parametrize("arm", [parameters for parameters in ALL_ARMS if _arm(parameters).batch_only])
def test_every_option_of_a_batch_script_is_one_of_inference_demo(arm: Arm) -> None:
    known = _table("neuron-config/inference-demo-0.6.10598.json")
    argv = batch_argv(arm, prompts=("Why?", "--not an option"), max_new_tokens=400)
    assert argv[argv.index("run") - 4 : argv.index("run")] == [
        "--model-type",
        "llama",
        "--task-type",
        "causal-lm",
    ]
    values = {number + 1 for number, word in enumerate(argv) if word in known and not known[word]}
    for number, word in enumerate(argv):
        if word.startswith("--") and number not in values:
            assert word in known, word
            assert known[word].get("flag", False) == (number + 1 not in values), word
    assert argv.count("--prompt") == 2


def test_a_medusa_tree_fills_the_window_and_every_path_has_its_parent() -> None:
    for heads in (1, 2, 4, 5):
        paths = compilation.tree(heads)
        if heads > 1:
            assert len(paths) == compilation.SPECULATION_LENGTH - 1
        assert max(map(len, paths)) <= heads
        known = {tuple(path) for path in paths}
        assert len(known) == len(paths)
        assert all(path[:-1] in known for path in known if len(path) > 1)


def test_each_mode_says_its_method_where_the_runtime_reads_one() -> None:
    arms = {arm.name: arm for arm in (_arm(parameters) for parameters in ALL_ARMS)}
    said = {
        name: options(serve_argv(arms[name]))["--speculative-config"].get("method")
        for name in ("qwen-sd-vllm", "llama-eagle3", "tiny-sd-k3")
    }
    assert said == {"qwen-sd-vllm": None, "llama-eagle3": "eagle3", "tiny-sd-k3": "draft_model"}
    assert compile_config(arms["llama-eagle3"])["is_eagle3"]
    assert not compile_config(arms["llama-plugin"])["enable_eagle_speculation"]


@pytest.mark.parametrize("arm", SERVED)
def test_servers_load_from_local_folders_and_reach_no_hub(arm: Arm) -> None:
    environment = serve_environment(arm)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert serve_argv(arm)[2].startswith("/checkpoints/")
    artifact = {
        "nxdi-v0": "NEURON_COMPILED_ARTIFACTS",
        "nxdi-v1": "NEURON_COMPILED_ARTIFACTS",
        "native": "VLLM_CACHE_ROOT",
        "vllm": None,
    }[arm.runtime.dialect]
    if artifact:
        root = {"mount": "/artifacts", "scratch": "/scratch/artifacts"}[arm.serving.artifact_source]
        assert environment[artifact] == f"{root}/{artifact_key(arm)}"
        assert compile_environment(arm)[artifact] == f"/scratch/artifacts/{artifact_key(arm)}"


def test_compiling_and_serving_share_what_shapes_a_graph() -> None:
    for arm in map(_arm, ALL_ARMS):
        if not arm.batch_only:
            shared = compiler_environment(arm).items()
            assert shared <= serve_environment(arm).items()
            assert shared <= compile_environment(arm).items()


def test_a_native_server_fails_rather_than_compile() -> None:
    (today,) = (arm for arm in map(_arm, ALL_ARMS) if arm.name == "qwen-today")
    assert serve_environment(today)["VLLM_NEURON_DISABLE_WARMUP_COMPILE"] == "1"
    assert "VLLM_NEURON_DISABLE_WARMUP_COMPILE" not in compile_environment(today)
