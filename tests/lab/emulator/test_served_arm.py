"""Reading an arm out of its container's argv, and refusing what cannot be served."""

from __future__ import annotations

import json
import shlex

import pytest

from experiment.finding import Misuse
from lab.emulator.served_arm import parse_argv
from tests.lab.emulator.arms import BASELINE, SPECULATIVE


def test_the_rendered_argv_decides_names_slots_length_and_speculation() -> None:
    arm = parse_argv(SPECULATIVE)
    assert arm.model == "/checkpoints/Qwen/Qwen3-32B"
    assert arm.served_names == ("Qwen/Qwen3-32B",)
    assert (arm.max_num_seqs, arm.max_model_len) == (4, 1024)
    assert (arm.speculative_tokens, arm.draft) == (7, "/checkpoints/Qwen/Qwen3-1.7B")


def test_a_plain_model_without_a_served_name_answers_to_its_path() -> None:
    arm = parse_argv(shlex.split("vllm serve /m --max-num-seqs 4 --max-model-len 64"))
    assert (arm.served_names, arm.speculative_tokens, arm.draft) == (("/m",), 0, "")


def test_unknown_options_are_accepted_and_the_last_mention_counts() -> None:
    extra = shlex.split("--no-such-flag --with-value x --inline=y -tp 32 --negative -1 --max-model-len=512")
    arm = parse_argv([*BASELINE, *extra])
    assert (arm.max_model_len, arm.max_num_seqs) == (512, 4)


@pytest.mark.parametrize(
    ("config", "override", "method"),
    [
        ({"method": "ngram"}, {}, "ngram"),
        ({}, {"enable_eagle_speculation": True}, "eagle"),
        ({}, {"enable_fused_speculation": False}, "vanilla"),
    ],
)
def test_what_has_no_published_timings_is_refused_in_one_line(
    config: dict[str, object], override: dict[str, object], method: str
) -> None:
    config |= {"model": "/d", "num_speculative_tokens": 7}
    options = ["--speculative-config", json.dumps(config), "--override-neuron-config", json.dumps(override)]
    with pytest.raises(Misuse, match=f"method '{method}' has no published timings") as caught:
        parse_argv([*BASELINE, *options])
    assert "\n" not in str(caught.value)
    assert parse_argv([*BASELINE, *options], heads=True).speculative_tokens == 7, "where its steps are given"
