"""Several sizes of the batch: the arms that they make, where these stand, and what each of them is compared with."""

from __future__ import annotations

import pytest

from experiment import Experiment, load
from experiment.arms import digest
from experiment.compilation import artifact_key, compile_config
from experiment.cost import run_price
from experiment.expected import concurrent_sequences
from experiment.placement import batches
from tests.experiment.edits import SPECULATION, Variation, both, put

SIZES = put("serving.max_num_seqs", [4, 8, 16])


def test_each_size_has_every_arm_and_the_first_keeps_the_names(variation: Variation) -> None:
    names = [arm.name for arm in load(variation(SIZES)).arms]
    pair = ["qwen-vllm", "qwen-sd-vllm"]
    assert names == [f"{name}{size}" for size in ("", "-b8", "-b16") for name in pair]
    swept = load(variation(both(SIZES, put(f"{SPECULATION}.num_speculative_tokens", [3, 7]))))
    assert [arm.name for arm in swept.arms][-2:] == ["qwen-sd-vllm-k3-b16", "qwen-sd-vllm-k7-b16"]


def test_a_list_of_one_size_is_that_size(reference: Experiment, variation: Variation) -> None:
    assert digest(load(variation(put("serving.max_num_seqs", [4])))) == digest(reference)


def test_an_arm_of_a_further_size_is_compiled_for_it_as_if_it_were_alone(
    reference: Experiment, variation: Variation
) -> None:
    several, alone = load(variation(SIZES)), load(variation(put("serving.max_num_seqs", 8)))
    assert [artifact_key(arm) for arm in several.arms[:2]] == [artifact_key(arm) for arm in reference.arms]
    assert [artifact_key(arm) for arm in several.arms[2:4]] == [artifact_key(arm) for arm in alone.arms]
    assert [compile_config(arm)["batch_size"] for arm in several.arms] == [4, 4, 8, 8, 16, 16]


@pytest.mark.parametrize(
    ("nodes", "windows", "names"),
    [
        (1, 7, ["plain drafted", "plain-b8 drafted-b8", "plain-b16 drafted-b16"]),
        (2, 7, ["plain drafted plain-b8 drafted-b8", "plain-b16 drafted-b16"]),
        (3, 7, ["plain drafted plain-b8 drafted-b8 plain-b16 drafted-b16"]),
        (
            1,
            [3, 7],
            [f"plain{size} drafted-k{window}{size}" for size in ("", "-b8", "-b16") for window in (3, 7)],
        ),
    ],
)
def test_every_round_has_the_baseline_of_each_of_its_arms(
    variation: Variation, nodes: int, windows: int | list[int], names: list[str]
) -> None:
    renamed = both(put("arms.0.name", "plain"), put("arms.1.name", "drafted"))
    window = put(f"{SPECULATION}.num_speculative_tokens", windows)
    found = load(variation(both(SIZES, renamed, window, put("cluster.max_nodes", nodes))))
    assert [" ".join(arm.name for arm in arms) for arms in batches(found)] == names
    assert all(found.baseline_of(arm) in arms for arms in batches(found) for arm in arms)


def test_more_sizes_are_more_to_compile_and_to_measure_and_the_price_says_so(
    reference: Experiment, variation: Variation
) -> None:
    one, three = run_price(reference), run_price(load(variation(SIZES)))
    hours = [{part.step: part.hours for part in price.parts} for price in (one, three)]
    for step in ("load", "benchmark"):
        assert hours[1][step] == pytest.approx(3 * hours[0][step])
    assert three.usd > one.usd


def test_a_load_above_an_arms_batch_waits_at_that_arm_alone(variation: Variation) -> None:
    found = load(variation(both(SIZES, put("benchmark.concurrency", [4, 12]))))
    assert [concurrent_sequences(found, arm) for arm in found.arms] == [4, 4, 8, 8, 12, 12]


def test_an_arm_of_a_further_size_can_be_served_and_expected_of(variation: Variation) -> None:
    figure = {"arm": "qwen-sd-vllm-b16", "metric": "speed_up", "concurrency": 4, "value": 2.0, "source": "me"}
    chosen = both(put("serve", {"arm": "qwen-sd-vllm-b8"}), put("expect", {"figures": [figure]}))
    found = load(variation(both(SIZES, chosen)))
    assert found.serve is not None
    assert found.serve.arm == "qwen-sd-vllm-b8"
