"""The batch script of an arm that no server can run: NxD Inference's own `inference_demo`.

Options as in `inference_demo.py` at tag v0.6.10598 of https://github.com/aws-neuron/neuronx-distributed-inference, the
version inside the 2.26.1 image; a test compares them with a table read off that file. Unfused speculation compiles the
draft beside the target; Medusa reads its heads from `medusa_heads.pt` inside the target's own folder and under names of its
own, so target and heads are put together first, under `MEDUSA_MODEL`. *Not run on AWS.*
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cdk8s_charts.engine.command import compiled_path, weights_path
from cdk8s_charts.engine.dialect import SCRATCH_MOUNT
from experiment.compilation import SPECULATION_LENGTH, compiler_environment, tree

if TYPE_CHECKING:
    from experiment.arms import Arm


MEDUSA_MODEL = f"{SCRATCH_MOUNT}/medusa"
"""Links to the target's files, and `medusa_heads.pt` as `heads/join_heads.py` writes it."""
MEDUSA_TREE = "/plan/medusa-tree.json"
_MODEL_TYPES = {"LlamaForCausalLM": "llama"}


def batch_argv(arm: Arm, *, prompts: tuple[str, ...], max_new_tokens: int) -> list[str]:
    """Compile, generate for each prompt and measure, one request at a time."""
    serving, compiled = arm.serving, compiled_path(arm)
    argv = [
        *("inference_demo", "--model-type", _MODEL_TYPES[arm.target.model.architecture]),
        *("--task-type", "causal-lm", "run"),
        *("--model-path", MEDUSA_MODEL if _mode(arm) == "medusa" else weights_path(arm.target)),
        *("--compiled-model-path", compiled),
        *("--torch-dtype", "bfloat16"),
        *("--tp-degree", str(serving.tensor_parallel)),
        *("--logical-nc-config", str(serving.logical_nc_config)),
        *("--batch-size", str(serving.max_num_seqs)),
        *("--max-context-length", str(serving.max_model_len - max_new_tokens)),
        *("--seq-len", str(serving.max_model_len)),
        *("--padding-side", "right"),
        "--enable-bucketing",
        *("--top-k", "1"),
        *_speculation(arm, compiled),
        "--benchmark",
    ]
    return [*argv, *(word for prompt in prompts for word in ("--prompt", prompt))]


def batch_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same script."""
    return {
        **compiler_environment(arm),
        "BASE_COMPILE_WORK_DIR": f"{compiled_path(arm)}.work/",
        "NEURON_COMPILE_CACHE_URL": f"{compiled_path(arm)}.cache",
        "HF_HUB_OFFLINE": "1",
    }


def medusa_tree_file(arm: Arm) -> str:
    """What must lie at `MEDUSA_TREE`."""
    return json.dumps(tree(arm.num_speculative_tokens))


def _mode(arm: Arm) -> str:
    assert arm.speculation is not None, "a batch script is for arms that speculate"
    return arm.speculation.mode


def _speculation(arm: Arm, compiled: str) -> list[str]:
    assert arm.speculation is not None
    if _mode(arm) == "medusa":
        return [
            "--is-medusa",
            *("--num-medusa-heads", str(arm.num_speculative_tokens)),
            *("--medusa-speculation-length", str(SPECULATION_LENGTH)),
            *("--medusa-tree-json", MEDUSA_TREE),
        ]
    return [
        *("--draft-model-path", weights_path(arm.speculation.draft)),
        *("--compiled-draft-model-path", f"{compiled}-draft"),
        *("--speculation-length", str(arm.num_speculative_tokens)),
    ]
