"""Values that are lists: the arms that they make, what those are compiled for, what they cost, and which run together."""

from __future__ import annotations

import pytest

from tests.experiment.edits import NATIVE, SPECULATION, Edit, Variation, both, put
from trnspec.experiment import Experiment, load
from trnspec.experiment.arm_forecast import concurrent_sequences
from trnspec.experiment.arms import digest
from trnspec.experiment.compilation import artifact_key, compile_config
from trnspec.experiment.placement import place

DRAFTS = [{"model": "Qwen/Qwen3-0.6B"}, {"model": "Qwen/Qwen3-1.7B"}]
HEADS = [{"model": f"{owner}/Qwen3-32B-Eagle3-{owner}"} for owner in "ab"]
SIZES = put("serving.max_num_seqs", [4, 8, 16])
RENAMED = both(put("arms.0.name", "plain"), put("arms.1.name", "sd"))


def _windows(*values: int) -> Edit:
    return put(f"{SPECULATION}.num_speculative_tokens", list(values))


def _drafts(values: list[dict[str, str]]) -> Edit:
    return put(f"{SPECULATION}.draft", values)


@pytest.mark.parametrize(
    ("edit", "names"),
    [
        (_windows(7), "plain sd-k7"),
        (_windows(3, 7), "plain sd-k3 sd-k7"),
        (_drafts(DRAFTS), "plain sd-0-6b sd-1-7b"),
        (both(_drafts(DRAFTS), _windows(3, 7)), "plain sd-0-6b-k3 sd-0-6b-k7 sd-1-7b-k3 sd-1-7b-k7"),
        (both(NATIVE, _drafts(HEADS)), "plain sd-qwen3-32b-eagle3-a sd-qwen3-32b-eagle3-b"),
        (SIZES, "plain sd plain-b8 sd-b8 plain-b16 sd-b16"),
        (
            both(put("serving.max_num_seqs", [4, 8]), _windows(3, 7)),
            "plain sd-k3 sd-k7 plain-b8 sd-k3-b8 sd-k7-b8",
        ),
    ],
)
def test_each_combination_is_an_arm_of_its_own_named_by_what_tells_it_apart(
    variation: Variation, edit: Edit, names: str
) -> None:
    swept = load(variation(both(edit, RENAMED, put("cluster.max_nodes", 3))))
    assert " ".join(arm.name for arm in swept.arms) == names
    windows = {f"-k{arm.num_speculative_tokens}": arm.name for arm in swept.arms if "-k" in arm.name}
    assert all(window in name for window, name in windows.items())


def test_a_value_of_a_list_means_what_it_means_alone(reference: Experiment, variation: Variation) -> None:
    def keys(*edits: Edit) -> list[str]:
        return [artifact_key(arm) for arm in load(variation(both(*edits))).arms]

    assert keys(_windows(7)) == keys(put("serving.max_num_seqs", [4])) == keys()
    assert digest(load(variation(put("serving.max_num_seqs", [4])))) == digest(reference)
    assert keys(SIZES)[:4] == keys() + keys(put("serving.max_num_seqs", 8))
    loads, served = put("benchmark.concurrency", [4, 12]), put("serve", {"arm": "qwen-sd-vllm-b8"})
    figure = {"arm": "qwen-sd-vllm-b16", "metric": "speed_up", "concurrency": 4, "value": 2.0, "source": "me"}
    sizes = load(variation(both(SIZES, loads, served, put("expect", {"figures": [figure]}))))
    assert [compile_config(arm)["batch_size"] for arm in sizes.arms] == [4, 4, 8, 8, 16, 16]
    waiting = [concurrent_sequences(sizes, arm) for arm in sizes.arms]
    assert waiting == [4, 4, 8, 8, 12, 12], "a load above an arm's batch waits at that arm alone"


@pytest.mark.parametrize(
    ("edit", "nodes", "names"),
    [
        (_windows(3, 5, 7), 1, ["plain sd-k3", "plain sd-k5", "plain sd-k7"]),
        (_windows(3, 5, 7, 15), 2, ["plain sd-k3 sd-k5 sd-k7", "plain sd-k15"]),
        (_windows(3, 5, 7, 15), 3, ["plain sd-k3 sd-k5 sd-k7 sd-k15"]),
        (SIZES, 1, ["plain sd", "plain-b8 sd-b8", "plain-b16 sd-b16"]),
        (SIZES, 2, ["plain sd plain-b8 sd-b8", "plain-b16 sd-b16"]),
        (SIZES, 3, ["plain sd plain-b8 sd-b8 plain-b16 sd-b16"]),
        (
            both(SIZES, _windows(3, 7)),
            1,
            [f"plain{size} sd-k{window}{size}" for size in ("", "-b8", "-b16") for window in (3, 7)],
        ),
    ],
)
def test_what_does_not_fit_waits_for_a_later_round_that_has_its_baseline_too(
    variation: Variation, edit: Edit, nodes: int, names: list[str]
) -> None:
    swept = load(variation(both(edit, RENAMED, put("cluster.max_nodes", nodes))))
    found = swept.rounds
    assert [" ".join(arm.name for arm in arms) for arms in found] == names
    assert all(swept.baseline_of(arm) in arms for arms in found for arm in arms)
    assert swept.nodes <= nodes
    taken = [
        (entry.batch, entry.node, entry.first_device + device)
        for entry in place(swept)
        for device in range(entry.devices)
    ]
    assert len(set(taken)) == len(taken), "no device twice in a batch"
