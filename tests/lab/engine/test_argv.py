"""What is started here differs from what the pod runs in paths, host and port alone."""

from __future__ import annotations

import json

import pytest

from lab.engine.argv import local_argv
from lab.errors import LabError

SPECULATIVE = json.dumps(
    {"model": "/checkpoints/draft", "num_speculative_tokens": 7, "method": "draft_model"}
)
POD = ["vllm", "serve", "/checkpoints/target", "--host", "0.0.0.0", "--port", "8000", "--max-num-seqs", "4"]
FOLDERS = {"/checkpoints/target": "/here/target", "/checkpoints/draft": "/here/draft"}


def test_the_pods_options_stay_and_its_surroundings_are_replaced() -> None:
    assert local_argv(POD, engine=["/lab/vllm"], folders=FOLDERS, port=4711) == [
        *(
            "/lab/vllm",
            "serve",
            "/here/target",
            "--host",
            "127.0.0.1",
            "--port",
            "4711",
            "--max-num-seqs",
            "4",
        )
    ]


def test_the_draft_of_a_speculating_arm_is_found_too() -> None:
    argv = local_argv([*POD, "--speculative-config", SPECULATIVE], engine=["vllm"], folders=FOLDERS, port=1)
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config == {"model": "/here/draft", "num_speculative_tokens": 7, "method": "draft_model"}


def test_an_engine_may_be_several_words() -> None:
    argv = local_argv(POD, engine=["docker", "exec", "box", "vllm"], folders=FOLDERS, port=1)
    assert argv[:5] == ["docker", "exec", "box", "vllm", "serve"]


def test_another_program_is_refused() -> None:
    with pytest.raises(LabError, match="is not `vllm serve`"):
        local_argv(["torchrun", "x.py"], engine=["vllm"], folders=FOLDERS, port=1)


def test_weights_without_a_folder_are_refused() -> None:
    with pytest.raises(LabError, match=r"/checkpoints/target: no folder .* known are /checkpoints/draft"):
        local_argv(POD, engine=["vllm"], folders={"/checkpoints/draft": "/here/draft"}, port=1)
