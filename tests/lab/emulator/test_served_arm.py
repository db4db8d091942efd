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


def test_unknown_options_are_accepted_in_every_spelling_of_the_dialect() -> None:
    extra = shlex.split(
        "--no-such-flag --with-value x --inline=y --many a b -tp 32 --negative -1 --max_model_len=512"
    )
    arm = parse_argv([*BASELINE, *extra])
    assert arm.max_model_len == 512, "the last mention wins, underscores are hyphens"
    assert arm.max_num_seqs == 4


def _speculation(override: dict[str, object] | None = None, **changes: object) -> list[str]:
    config = {"model": "/d", "num_speculative_tokens": 7, **changes}
    argv = [*BASELINE, "--speculative-config", json.dumps(config)]
    return [*argv, "--override-neuron-config", json.dumps(override)] if override else argv


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ([], "does not begin with 'vllm serve MODEL'"),
        (["vllm", "serve", "--max-num-seqs", "4"], "does not begin with 'vllm serve MODEL'"),
        (["vllm", "serve", "/m", "stray"], "'stray' is neither an option"),
        (["vllm", "serve", "/m", "--max-num-seqs", "4"], "--max-model-len has 0 values"),
        ([*BASELINE, "--max-num-seqs", "0"], "--max-num-seqs is '0'"),
        (
            [*BASELINE, "--override-neuron-config", "{"],
            "--override-neuron-config is '{', which is not valid JSON",
        ),
        ([*BASELINE, "--speculative-config", "[]"], "one JSON object is needed"),
        (_speculation(num_speculative_tokens=True), "num_speculative_tokens is True"),
        (_speculation(model=None), "model is None"),
        (_speculation(method="ngram"), "method 'ngram' has no published timings"),
        (_speculation({"enable_eagle_speculation": True}), "method 'eagle'"),
        (_speculation({"speculation_length": 5}), "speculation_length is 5"),
        (_speculation({"enable_fused_speculation": False}), "method 'vanilla'"),
        ([*BASELINE, "--override-neuron-config", '{"speculation_length": 7}'], "speculation_length is 7"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(argv: list[str], part: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_argv(argv)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
