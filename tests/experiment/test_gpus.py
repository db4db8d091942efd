"""What dollars on Trn2 are read with: the same model on GPUs, as published, and the load at which arms and nodes are full."""

from __future__ import annotations

import pytest

from tests.experiment.edits import Variation, both, combined
from trnspec.experiment import load
from trnspec.experiment.catalogue.published import GPUS, Gpu
from trnspec.experiment.ledger import beside_dollars

G7E = "Qwen3-32B on one ml.g7e.2xlarge ($4.20 an hour) is published to cost "
LENGTHS = ". That is without prefix cache, for prompts of 522 tokens and answers of 600."


@pytest.mark.parametrize("row", GPUS, ids=lambda row: row.row)
def test_published_dollars_are_those_of_the_published_tokens(row: Gpu) -> None:
    worked_out = [row.usd_per_hour / (tokens * 3600) * 1e6 for tokens in reversed(row.tokens_per_s)]
    assert list(row.usd_per_million) == pytest.approx(worked_out, rel=0.04)


@pytest.mark.parametrize(
    ("edit", "figures"),
    [
        ("", "$14.5 to $15 per million output tokens at 4 concurrent requests, $1.9 to $2.4 at 32"),
        (
            "{benchmark.concurrency: [1, 2, 20]}",
            "$55 per million output tokens at 1 concurrent request, $3.7 to $4.3 at 16, $1.9 to $2.4 at 32",
        ),
        (
            "{benchmark.concurrency: [500]}",
            "$1.9 to $2.4 per million output tokens at 32 concurrent requests",
        ),
        (
            "{target: {model: my/tune, like: Qwen/Qwen3-32B}}",
            "$14.5 to $15 per million output tokens at 4 concurrent requests, $1.9 to $2.4 at 32",
        ),
    ],
)
def test_the_same_model_on_a_gpu_stands_beside_at_the_nearest_loads_and_the_largest(
    edit: str, figures: str, variation: Variation
) -> None:
    _, gpu = beside_dollars(load(variation(combined(edit))))
    assert gpu["text"] == f"{G7E}{figures}{LENGTHS}"
    assert gpu["source"].startswith("https://github.com/aws-samples/sagemaker-genai-hosting-examples")


def test_a_model_without_a_published_result_on_gpus_has_no_line(variation: Variation) -> None:
    (full,) = beside_dollars(load(variation(combined("QWEN_DFLASH"))))
    assert full["text"].startswith(
        "An arm is full at 4 concurrent requests, and a trn2.48xlarge (16 such arms) at 64."
    )


def test_every_size_of_the_batch_has_its_own_full_load(variation: Variation) -> None:
    full, _ = beside_dollars(load(variation(both(combined("{serving.max_num_seqs: [4, 8]}")))))
    assert "full at 4 or 8 concurrent requests, and a trn2.48xlarge (2 such arms) at 8 or 16." in full["text"]
