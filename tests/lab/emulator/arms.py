"""The argv of the reference experiment's two arms, as its Deployments carry it, and the plan that names
the classes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from tests.benchmark.conftest import plan_content

BASELINE = shlex.split(
    "vllm serve /checkpoints/Qwen/Qwen3-32B --served-model-name Qwen/Qwen3-32B --host 0.0.0.0 --port 8000 "
    "--device neuron --tensor-parallel-size 32 --max-num-seqs 4 --max-model-len 1024 "
    '--override-neuron-config \'{"batch_size": 4, "seq_len": 1024}\''
)

SPECULATIVE = [
    *BASELINE,
    "--speculative-config",
    json.dumps({"model": "/checkpoints/Qwen/Qwen3-1.7B", "num_speculative_tokens": 7, "max_model_len": 1024}),
]

MODEL = "Qwen/Qwen3-32B"

REPETITION = "Repeat the following line exactly 50 times: the cat sat on the mat."
OPEN_ENDED = "I believe the meaning of life is"


def plan_of(prompts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    numbered = [{"id": str(number), **prompt} for number, prompt in enumerate(prompts)]
    return plan_content(prompts=numbered, requests=1)


PLAN = plan_of(
    [
        {"class": "repetition", "messages": [{"role": "user", "content": REPETITION}]},
        {"class": "open-ended", "prompt": OPEN_ENDED},
    ]
)
