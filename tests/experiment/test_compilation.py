"""What is compiled: the whole configuration of an arm, and a key that changes with whatever could change the graph."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT
from trnspec.experiment import Arm, Experiment, load, naming
from trnspec.experiment.arm_forecast import expected_of, known_slowdown
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.models import MODELS
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.compilation import (
    KEY_LENGTH,
    artifact_inputs,
    artifact_key,
    compile_config,
    declared_keys,
    synchronous,
)
from trnspec.store.artifact import comparison

if TYPE_CHECKING:
    from collections.abc import Callable

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


def _serving(**changes: int | str) -> Callable[[Arm], Arm]:
    return lambda arm: replace(arm, serving=arm.serving.model_copy(update=changes))


def _treated(**changes: Any) -> Callable[[Arm], Arm]:
    """A change of the speculation; of its draft where `draft` is a mapping."""

    def change(arm: Arm) -> Arm:
        assert arm.speculation is not None
        draft = replace(arm.speculation.draft, **changes.get("draft", {}))
        return replace(arm, speculation=replace(arm.speculation, **changes | {"draft": draft}))

    return change


CHANGES: dict[str, Callable[[Arm], Arm]] = {
    "k": _treated(num_speculative_tokens=5),
    "mode": _treated(mode="eagle"),
    "no speculation": lambda arm: replace(arm, speculation=None),
    "draft": _treated(draft={"model": MODELS["Qwen/Qwen3-0.6B"]}),
    "draft revision": _treated(draft={"revision": "a" * 40}),
    "target": lambda arm: replace(arm, target=replace(arm.target, model=MODELS["Qwen/Qwen3-14B"])),
    "target revision": lambda arm: replace(arm, target=replace(arm.target, revision="b" * 40)),
    "image": lambda arm: replace(arm, runtime=replace(arm.runtime, image=f"{arm.runtime.image}@sha256:0")),
    "runtime": lambda arm: replace(arm, runtime=RUNTIMES["nxdi-vllm-0.16"], speculation=None),
    "instance": lambda arm: replace(arm, instance=INSTANCES["trn2.3xlarge"]),
    "tensor parallelism": _serving(tensor_parallel=16),
    "logical cores": _serving(logical_nc_config=1),
    "batch": _serving(max_num_seqs=8),
    "length": _serving(max_model_len=2048),
}
SAME: dict[str, Callable[[Arm], Arm]] = {
    "name": lambda arm: replace(arm, name="renamed"),
    "runtime's label": lambda arm: replace(arm, runtime=replace(arm.runtime, name="renamed")),
    "metrics": lambda arm: replace(arm, runtime=replace(arm.runtime, metrics=())),
    "allocation": _serving(allocation="device-plugin"),
    "pod security": _serving(pod_security="restricted"),
    "API key": _serving(api_key_secret="key"),
}


def test_whatever_shapes_an_artifact_changes_its_key_each_in_its_own_way_and_nothing_else_does(
    reference: Experiment,
) -> None:
    arm = reference.arms[1]
    keys = {name: artifact_key(edit(arm)) for name, edit in CHANGES.items()}
    assert len({artifact_key(arm), *keys.values()}) == len(keys) + 1, keys
    assert {name: artifact_key(edit(arm)) for name, edit in SAME.items()} == dict.fromkeys(
        SAME, artifact_key(arm)
    )


def test_the_native_runtimes_key_knows_what_its_configuration_does_not_say() -> None:
    today = load(ROOT / "experiments" / "qwen3-32b-today.yaml").baseline
    assert "tp_degree" not in artifact_inputs(today)["neuron_config"]
    assert artifact_key(_serving(tensor_parallel=16)(today)) != artifact_key(today)


def test_jobs_and_folders_are_named_after_what_they_make(reference: Experiment) -> None:
    arm = reference.arms[1]
    assert naming.compile_job(arm) == naming.compile_job(replace(arm, name="renamed"))
    assert naming.compile_job(arm) != naming.compile_job(_treated(num_speculative_tokens=5)(arm))
    pinned = replace(arm.target, revision="b" * 40)
    assert naming.fetch_job(arm.target) != naming.fetch_job(pinned)
    assert naming.weights_path(arm.target) == "Qwen/Qwen3-32B/unpinned"
    assert naming.weights_path(pinned) == f"Qwen/Qwen3-32B/{'b' * 40}"
    assert naming.fetch_job(arm.target).startswith("fetch-qwen3-32b-")
    for path in EXPERIMENTS:
        experiment = load(path)
        keys = [artifact_key(each) for each in experiment.arms]
        assert len(set(keys)) == len(keys), "arms of one experiment never share an artifact"
        assert {len(key) for key in keys} == {KEY_LENGTH}
        names = [naming.fetch_job(weights) for weights in experiment.weights]
        names += [naming.compile_job(each) for each in experiment.arms]
        assert len(set(names)) == len(names)
        assert all(len(name) <= 63 - len("-0a1b2c3d") and name == naming.slug(name) for name in names)


def test_what_the_library_sets_by_itself_for_a_fused_arm_counts_as_its_speculation(
    reference: Experiment,
) -> None:
    """NxD Inference tiles the key-value cache of fused and EAGLE arms; asynchronous execution it does not set."""
    plain, fused = (
        {"neuron_config": {"kv_cache_tiling": tiled, "async_mode": tiled}} for tiled in (False, True)
    )
    declared = declared_keys(reference.baseline, reference.arms[1])
    found = json.loads(comparison("s3://x", plain, fused, declared))["differences"]
    assert {one["path"]: one["declared"] for one in found} == {
        "neuron_config.kv_cache_tiling": True,
        "neuron_config.async_mode": False,
    }


def test_the_last_context_bucket_is_the_longest_prompt_and_declared_with_the_list() -> None:
    plain, _ = load(ROOT / "experiments" / "llama-3.3-70b-tp64.yaml").arms
    listed = compile_config(plain)["context_encoding_buckets"]
    assert compile_config(plain)["max_context_length"] == max(listed) < plain.serving.max_model_len
    without = replace(plain, engine={})
    assert compile_config(without)["max_context_length"] == plain.serving.max_model_len
    assert "max_context_length" in declared_keys(without, plain)
    assert "max_context_length" not in declared_keys(without, without)


def test_what_is_synchronous_is_not_forecast_and_a_head_that_is_published_beside_another_baseline_is() -> (
    None
):
    dflash = load(ROOT / "experiments" / "qwen3-4b-dflash.yaml")
    told = {arm.name: (synchronous(arm), known_slowdown(arm)) for arm in dflash.arms}
    slow = (True, "synchronous")
    assert told == {"qwen-sync": slow, "qwen-dflash": slow, "qwen-default": (False, None)}
    assert [expected_of(dflash, arm).plain.likely_s is None for arm in dflash.arms] == [True, True, False]
    eagle3 = load(ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml")
    drafted = expected_of(eagle3, eagle3.arms[1]).drafted
    assert drafted is not None
    assert drafted.likely is not None


def test_the_native_plugin_compiles_for_the_lengths_of_the_load_and_for_the_whole_context() -> None:
    """The sequences of `published` are read whole, as they were for the figures that it expects."""
    today = load(ROOT / "experiments" / "qwen3-32b-today.yaml")
    published = load(ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml")
    long = 3 * 700
    for prompt, context, buckets, reads in (
        (0, 0, [4096], None),
        (100, 300, [128, 4096], [512]),
        (129, 2048, [128, 256, 4096], [2048]),
        (long, 5000, [128, 256, 512, 1024, 2048, 4096], None),
    ):
        lengths = {"prompt_tokens": prompt, "sequence_tokens": context, "max_model_len": 4096}
        config = compile_config(_serving(**lengths)(today.baseline))
        assert config["num_batched_tokens_buckets"] == buckets
        assert config.get("decode_context_length_buckets") == reads
    assert {arm.serving.sequence_tokens for arm in published.arms} == {0}
    assert all(arm.serving.prompt_tokens for arm in published.arms)
    native, fused = (
        next(arm for arm in today.arms if arm.runtime.dialect == dialect) for dialect in ("native", "nxdi-v0")
    )
    assert (fused.serving.prompt_tokens, fused.serving.sequence_tokens) == (0, 0)
    longest = max(len(prompt.contents[-1].encode()) for prompt in today.prompts)
    assert native.serving.prompt_tokens == longest // 3 + 48
    assert native.serving.sequence_tokens == native.serving.prompt_tokens + today.benchmark.max_tokens + 8
