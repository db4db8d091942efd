"""Arms that list values: which arms they become, and what is refused in the author's own paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from experiment import Experiment, InvalidExperiment, load
from experiment.compilation import artifact_key
from experiment.placement import batches, nodes_needed, place
from tests.conftest import ROOT
from tests.experiment.edits import Edit, both, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Edit], Path]

SPECULATION = "arms.1.speculation"
DRAFTS = [{"model": "Qwen/Qwen3-0.6B"}, {"model": "Qwen/Qwen3-1.7B"}]


@pytest.fixture(scope="module")
def sixteen() -> Experiment:
    return load(ROOT / "experiments" / "qwen3-32b-tp4-sweep.yaml")


def _names(experiment: Experiment) -> list[str]:
    return [arm.name for arm in experiment.arms]


def test_each_window_is_an_arm_of_its_own(variation: Variation) -> None:
    swept = load(
        variation(both(put(f"{SPECULATION}.num_speculative_tokens", [3, 7]), put("cluster.max_nodes", 2)))
    )
    assert _names(swept) == ["qwen-vllm", "qwen-sd-vllm-k3", "qwen-sd-vllm-k7"]
    assert [arm.tokens_per_step for arm in swept.arms] == [1, 3, 7]


def test_each_draft_with_each_window_is_an_arm_of_its_own(variation: Variation) -> None:
    edit = both(put(f"{SPECULATION}.draft", DRAFTS), put(f"{SPECULATION}.num_speculative_tokens", [3, 7]))
    assert _names(load(variation(edit)))[1:] == [
        "qwen-sd-vllm-0-6b-k3",
        "qwen-sd-vllm-0-6b-k7",
        "qwen-sd-vllm-1-7b-k3",
        "qwen-sd-vllm-1-7b-k7",
    ]


def test_drafts_alone_are_named_by_their_size(variation: Variation) -> None:
    assert _names(load(variation(put(f"{SPECULATION}.draft", DRAFTS))))[1:] == [
        "qwen-sd-vllm-0-6b",
        "qwen-sd-vllm-1-7b",
    ]


def test_drafts_of_one_size_are_named_in_full(variation: Variation) -> None:
    heads = [{"model": f"{owner}/Qwen3-32B-Eagle3-{owner}", "head_for": "Qwen/Qwen3-32B"} for owner in "ab"]
    edit = both(
        put("runtime", "native-vllm-0.29"),
        put("serving.artifact_source", "scratch"),
        put(f"{SPECULATION}.mode", "eagle3"),
        put(f"{SPECULATION}.draft", heads),
    )
    assert _names(load(variation(edit)))[1:] == [
        "qwen-sd-vllm-qwen3-32b-eagle3-a",
        "qwen-sd-vllm-qwen3-32b-eagle3-b",
    ]


def test_a_swept_value_means_what_the_same_value_means_alone(
    reference: Experiment, variation: Variation
) -> None:
    swept = load(variation(put(f"{SPECULATION}.num_speculative_tokens", [7])))
    assert artifact_key(swept.arms[1]) == artifact_key(reference.arms[1])
    assert swept.arms[1].name == "qwen-sd-vllm-k7"


def test_sixteen_arms_share_one_node_and_no_artifact(sixteen: Experiment) -> None:
    assert len(sixteen.arms) == 16
    assert nodes_needed(sixteen) == 1
    assert len(batches(sixteen)) == 1
    assert sorted(entry.first_device for entry in place(sixteen)) == list(range(16))
    assert len({artifact_key(arm) for arm in sixteen.arms}) == 16


@pytest.mark.parametrize(("nodes", "sizes"), [(1, [2, 2, 2, 2]), (2, [4, 2]), (3, [5])])
def test_what_does_not_fit_waits_for_a_later_round_that_has_the_baseline_too(
    variation: Variation, nodes: int, sizes: list[int]
) -> None:
    swept = load(
        variation(
            both(
                put(f"{SPECULATION}.num_speculative_tokens", [3, 5, 7, 15]),
                put("cluster.max_nodes", nodes),
            )
        )
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


def _sweep(**values: Any) -> Edit:
    return both(*(put(f"{SPECULATION}.{name}", value) for name, value in values.items()))


def test_a_model_missing_for_all_windows_is_said_once(variation: Variation) -> None:
    edit = _sweep(draft={"model": "nobody/knows"}, num_speculative_tokens=[3, 5, 7])
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(edit))
    assert [problem.where for problem in caught.value.findings] == ["arms[1].speculation.draft.model"]
