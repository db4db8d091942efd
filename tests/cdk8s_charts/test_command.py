"""argv against the parser of the vLLM version that the image carries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.parity import options
from cdk8s_charts.vllm_command import (
    NATIVE_CACHES,
    compile_argv,
    compile_environment,
    compiled_path,
    fixed_caches,
    serve_argv,
    serve_environment,
)
from tests.cdk8s_charts.objects import RENDERED, experiment_at
from tests.conftest import ROOT
from tests.experiment.edits import EAGLE, SPECULATION, both, put
from trnspec.experiment import Arm, load
from trnspec.experiment.catalogue.engine_keys import known_keys
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.compilation import artifact_inputs, artifact_key, compile_config, compiler_environment
from trnspec.experiment.placement import COMPILER_GIB, compile_share, pod_share

ARMS = {f"{path.stem}-{arm.name}": arm for path in RENDERED for arm in experiment_at(path).arms}
_PLUGIN = RUNTIMES[
    "nxdi-vllm-0.16"
]  # no experiment here has an arm on it: the public EAGLE3 heads map a smaller vocabulary
ARMS |= {
    f"plugin-{name}": replace(ARMS[f"llama-3.3-70b-native-{name}"], runtime=_PLUGIN)
    for name in ("llama-vllm", "llama-eagle3")
}
ANSWERING = {"chat_template": "{{ messages }}", "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
ARMS |= {
    f"answering-{arm.runtime.name}": replace(arm, serving=arm.serving.model_copy(update=ANSWERING))
    for arm in {arm.runtime.name: arm for arm in ARMS.values()}.values()
}
SERVED = [pytest.param(arm, id=name) for name, arm in ARMS.items()]


def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((ROOT / name).read_text())
    return table


def _known_options(arm: Arm) -> dict[str, Any]:
    return _table(f"tests/data/vllm-options/{arm.runtime.vllm}.json")


def test_the_arms_speak_every_dialect_and_every_runtime_has_its_table_of_options() -> None:
    assert {arm.runtime.dialect for arm in ARMS.values()} == {one.dialect for one in RUNTIMES.values()}
    tables = {path.stem for path in (ROOT / "tests/data/vllm-options").iterdir()}
    assert tables == {one.vllm for one in RUNTIMES.values()}


@pytest.mark.parametrize("arm", SERVED)
def test_every_option_of_a_server_is_one_of_its_vllm_and_fits_it(arm: Arm) -> None:
    """An object is JSON on one line: the parser of 0.9.1 looks for `^{.*}$` and takes other texts for KEY=VALUE pairs."""
    known = _known_options(arm)
    for name, value in options(serve_argv(arm)).items():
        if name:
            assert name in known, f"{name} is unknown to vLLM {arm.runtime.vllm}"
            assert known[name].get("flag", False) == (value is True), name
            assert "choices" not in known[name] or value in known[name]["choices"]
    for word in serve_argv(arm):
        assert "{" not in word or re.match("^{.*}$", word), word


@pytest.mark.parametrize("arm", SERVED)
def test_a_compilation_is_given_the_engine_options_of_its_server(arm: Arm) -> None:
    compiled = json.loads(compile_argv(arm)[-1])
    served = options(serve_argv(arm))
    known = _known_options(arm)
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


@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_every_key_of_a_neuron_config_is_known_to_its_reader(arm: Arm) -> None:
    _keys_are_known(arm)


def _keys_are_known(arm: Arm) -> None:
    config, table = compile_config(arm), arm.runtime.config_keys
    assert config
    for mapping, keys in (
        ("neuron_config", config),
        ("on_device_sampling_config", config.get("on_device_sampling_config")),
    ):
        assert (keys or {}).keys() <= known_keys(table, mapping)


@pytest.mark.parametrize("arm", SERVED)
def test_servers_load_from_local_folders_what_was_compiled_alike_and_reach_no_hub(arm: Arm) -> None:
    serving, compiling = serve_environment(arm), compile_environment(arm)
    assert serving["HF_HUB_OFFLINE"] == "1"
    assert serve_argv(arm)[2].startswith("/checkpoints/")
    shapes_a_graph = compiler_environment(arm).items()
    assert shapes_a_graph <= serving.items()
    assert shapes_a_graph <= compiling.items()
    artifact = "VLLM_CACHE_ROOT" if arm.runtime.dialect == "native" else "NEURON_COMPILED_ARTIFACTS"
    root = "/scratch/artifacts" if arm.serving.copies_artifact else "/artifacts"
    assert serving[artifact] == f"{root}/{artifact_key(arm)}"
    assert compiling[artifact] == f"/scratch/artifacts/{artifact_key(arm)}"


@pytest.mark.parametrize(
    ("runtime", "mode", "method"),
    [
        ("nxdi-vllm-0.9.1", "eagle", None),  # by override: the fork's example of EAGLE names no method
        ("nxdi-vllm-0.16", "eagle", "eagle"),
        ("nxdi-vllm-0.16", "eagle3", "eagle3"),
    ],
)
def test_an_eagle_head_is_told_to_every_runtime_that_reads_it(
    variation: Callable[..., Path], runtime: str, mode: str, method: str | None
) -> None:
    """No EAGLE head (v1) for Llama-3.3-70B is public, so no experiment here has such an arm; who trained one names it so."""
    edit = both(EAGLE, put("runtime", runtime), put(f"{SPECULATION}.mode", mode))
    arm = load(variation(edit)).arms[1]
    told = options(serve_argv(arm))
    assert {name for name in told if name} <= _known_options(arm).keys()
    speculative = told["--speculative-config"]
    assert speculative["model"].startswith("/checkpoints/somebody/head/")
    assert speculative.get("method") == method
    config: dict[str, Any] = (
        told.get("--override-neuron-config") or (told["--additional-config"]["override_neuron_config"])
    )
    assert config["enable_eagle_speculation"] is True
    assert config["enable_fused_speculation"] is True
    assert config.get("is_eagle3", False) is (mode == "eagle3")
    _keys_are_known(arm)


NATIVE = [pytest.param(arm, id=name) for name, arm in ARMS.items() if arm.runtime.dialect == "native"]
WORKERS = "VLLM_NEURON_PARALLEL_COMPILE_WORKERS"


@pytest.mark.parametrize("arm", NATIVE)
def test_the_native_plugin_finds_what_was_compiled(arm: Arm) -> None:
    """The same variables and folders on both sides, every cache in the stored folder, no compiler flags, and one size of the cache."""
    compiling, serving = compile_environment(arm), serve_environment(arm)
    assert {name for name, _ in compiling.items() ^ serving.items()} <= {WORKERS}
    named = {value for name, value in serving.items() if "CACHE" in name or name == "HOME"}
    assert len(named) == len(NATIVE_CACHES)
    assert all(f"{value}/".startswith(f"{compiled_path(arm)}/") for value in named)
    folder = compiled_path(arm).removeprefix("/scratch/")
    assert fixed_caches(arm) == {"/var/tmp/nki-intermediate-cache": f"{folder}/nki-intermediate"}
    assert "NEURON_CC_FLAGS" not in compiling
    assert serving["NEURON_SKIP_EFA_AFFINITY"] == "1"
    blocks = arm.serving.max_model_len * arm.serving.max_num_seqs // 32 + 176
    assert options(serve_argv(arm))["--num-gpu-blocks-override"] == str(blocks)
    assert json.loads(compile_argv(arm)[-1])["num_gpu_blocks_override"] == blocks
    assert artifact_inputs(arm)["cache_blocks"] == blocks


@pytest.mark.parametrize("arm", SERVED)
def test_an_arm_that_drafts_tells_acceptance_of_each_answer_where_its_vllm_can(arm: Arm) -> None:
    option = "--per-request-spec-decode-metrics"
    tells = arm.speculation is not None and option in _known_options(arm)
    assert options(serve_argv(arm)).get(option) == ("summary" if tells else None)


@pytest.mark.parametrize(
    "arm", [pytest.param(arm, id=name) for name, arm in ARMS.items() if arm.runtime.dialect == "native"]
)
def test_the_native_plugin_is_given_what_it_takes_and_compiles_what_it_does_not_find(arm: Arm) -> None:
    """Host sampling and DFlash are synchronous. `test_image_probe.py` asks of buckets."""
    config, served = compile_config(arm), options(serve_argv(arm))
    environment = serve_environment(arm)
    assert "VLLM_NEURON_DISABLE_WARMUP_COMPILE" not in environment
    assert not [name for name in environment if name.startswith("NEURON_LIBTORCH_")], "newer plugins raise"
    assert int(environment["VLLM_ENGINE_READY_TIMEOUT_S"]) >= 10_800, "vLLM gives up after 600 s otherwise"
    dflash = arm.speculation is not None and arm.speculation.mode == "dflash"
    alone = config["on_device_sampling_config"] is None or dflash or arm.scheduler == "synchronous"
    assert served.get("--no-async-scheduling", False) == alone
    assert served["--no-enable-chunked-prefill"]
    assert served["--no-enable-prefix-caching"]


@pytest.mark.parametrize("arm", NATIVE)
@pytest.mark.parametrize("environment", [serve_environment, compile_environment])
def test_the_compilers_of_all_ranks_fit_into_the_pod(
    arm: Arm, environment: Callable[[Arm], dict[str, str]]
) -> None:
    share = pod_share(arm) if environment is serve_environment else compile_share(arm)
    workers = int(environment(arm)[WORKERS])
    assert workers == 1 or workers * arm.serving.tensor_parallel * COMPILER_GIB <= share.memory_gib


def test_nxd_compiles_no_more_graphs_at_once_than_fit_into_the_pod(tmp_path: Path) -> None:
    """`ModelBuilder` takes what a pool has by default."""
    arm = next(arm for name, arm in ARMS.items() if name.startswith("qwen3-32b-tp4-sweep"))
    engine = "from concurrent.futures import *\ndef LLM(**_): print(ThreadPoolExecutor()._max_workers)\n"
    (tmp_path / "vllm.py").write_text(engine)
    python, *command = compile_argv(arm)
    assert python == "python3"
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == compile_share(arm).memory_gib // COMPILER_GIB < 32
