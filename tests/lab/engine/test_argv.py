"""What is started here differs from what the pod runs in paths, host and port alone."""

from __future__ import annotations

import json
import sys

import pytest

from experiment.finding import Refusal
from lab.engine.argv import local_argv, local_probe

SPECULATIVE = json.dumps(
    {"model": "/checkpoints/draft", "num_speculative_tokens": 7, "method": "draft_model"}
)
POD = ["vllm", "serve", "/checkpoints/target", "--host", "0.0.0.0", "--port", "8000", "--max-num-seqs", "4"]
FOLDERS = {"/checkpoints/target": "/here/target", "/checkpoints/draft": "/here/draft"}


def test_the_pods_options_stay_and_its_surroundings_are_replaced() -> None:
    argv = local_argv(POD, engine=["/lab/vllm"], folders=FOLDERS, port=4711)
    assert argv == [
        "/lab/vllm",
        "serve",
        "/here/target",
        "--host",
        "127.0.0.1",
        "--port",
        "4711",
        "--max-num-seqs",
        "4",
    ]


def test_the_draft_of_a_speculating_arm_is_found_too() -> None:
    argv = local_argv([*POD, "--speculative-config", SPECULATIVE], engine=["vllm"], folders=FOLDERS, port=1)
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config == {"model": "/here/draft", "num_speculative_tokens": 7, "method": "draft_model"}


def test_an_engine_may_be_several_words() -> None:
    argv = local_argv(POD, engine=["docker", "exec", "box", "vllm"], folders=FOLDERS, port=1)
    assert argv[:5] == ["docker", "exec", "box", "vllm", "serve"]


def test_another_program_is_refused() -> None:
    with pytest.raises(Refusal, match="is not `vllm serve`"):
        local_argv(["torchrun", "x.py"], engine=["vllm"], folders=FOLDERS, port=1)


def test_weights_without_a_folder_are_refused() -> None:
    with pytest.raises(Refusal, match=r"/checkpoints/target: no folder .* known are /checkpoints/draft"):
        local_argv(POD, engine=["vllm"], folders={"/checkpoints/draft": "/here/draft"}, port=1)


def test_a_probe_asks_the_same_server_on_its_port_here() -> None:
    probe = ["python3", "-c", "urlopen('http://127.0.0.1:8000/health')", "model:8000"]
    assert local_probe(probe, rendered_port=8000, port=4711) == [
        *(sys.executable, "-c", "urlopen('http://127.0.0.1:4711/health')", "model:8000")
    ]


@pytest.mark.parametrize(
    "probe", [["curl", "http://127.0.0.1:8000/health"], ["python3", "-c", "urlopen('http://127.0.0.1:9000')"]]
)
def test_a_probe_that_cannot_be_pointed_at_a_server_is_refused(probe: list[str]) -> None:
    with pytest.raises(Refusal, match=r"is no Python that asks 127\.0\.0\.1:8000"):
        local_probe(probe, rendered_port=8000, port=4711)
