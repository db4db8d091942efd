"""Arms that list values: which arms they become, and what is refused in the author's own paths."""

from __future__ import annotations

from typing import Any

import pytest

from experiment import Experiment, load
from experiment.compilation import artifact_key
from experiment.placement import batches, nodes_needed, place
from tests.experiment.edits import NATIVE, SPECULATION, Edit, Variation, both, put

DRAFTS = [{"model": "Qwen/Qwen3-0.6B"}, {"model": "Qwen/Qwen3-1.7B"}]


def _sweep(**values: Any) -> Edit:
    return both(*(put(f"{SPECULATION}.{name}", value) for name, value in values.items()))


def _names(experiment: Experiment) -> list[str]:
    return [arm.name for arm in experiment.arms]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"num_speculative_tokens": [3, 7]}, "-k3 -k7"),
        ({"draft": DRAFTS, "num_speculative_tokens": [3, 7]}, "-0-6b-k3 -0-6b-k7 -1-7b-k3 -1-7b-k7"),
        ({"draft": DRAFTS}, "-0-6b -1-7b"),
    ],
)
def test_each_combination_is_an_arm_of_its_own_named_by_what_tells_it_apart(
    variation: Variation, values: dict[str, Any], names: str
) -> None:
    swept = load(variation(both(_sweep(**values), put("cluster.max_nodes", 2))))
    assert _names(swept) == ["qwen-vllm", *(f"qwen-sd-vllm{name}" for name in names.split())]
    windows = values.get("num_speculative_tokens", [7])
    assert {arm.tokens_per_step for arm in swept.arms} == {1, *windows}


def test_drafts_of_one_size_are_named_in_full(variation: Variation) -> None:
    heads = [{"model": f"{owner}/Qwen3-32B-Eagle3-{owner}", "head_for": "Qwen/Qwen3-32B"} for owner in "ab"]
    edit = both(NATIVE, _sweep(draft=heads))
    assert _names(load(variation(edit)))[1:] == [
        "qwen-sd-vllm-qwen3-32b-eagle3-a",
        "qwen-sd-vllm-qwen3-32b-eagle3-b",
    ]


def test_a_swept_value_means_what_the_same_value_means_alone(
    reference: Experiment, variation: Variation
) -> None:
    swept = load(variation(_sweep(num_speculative_tokens=[7])))
    assert artifact_key(swept.arms[1]) == artifact_key(reference.arms[1])
    assert swept.arms[1].name == "qwen-sd-vllm-k7"


@pytest.mark.parametrize(("nodes", "sizes"), [(1, [2, 2, 2, 2]), (2, [4, 2]), (3, [5])])
def test_what_does_not_fit_waits_for_a_later_round_that_has_the_baseline_too(
    variation: Variation, nodes: int, sizes: list[int]
) -> None:
    swept = load(
        variation(both(_sweep(num_speculative_tokens=[3, 5, 7, 15]), put("cluster.max_nodes", nodes)))
    )
    found = batches(swept)
    assert [len(batch) for batch in found] == sizes
    assert all(batch[0] is swept.baseline for batch in found)
    assert [*_names(swept)[:1], *(arm.name for batch in found for arm in batch[1:])] == _names(swept)
    assert nodes_needed(swept) <= nodes
    for number in range(len(found)):
        taken = [
            (entry.node, entry.first_device + device)
            for entry in place(swept)
            if entry.batch == number
            for device in range(entry.devices)
        ]
        assert len(set(taken)) == len(taken), "no device twice in a batch"
