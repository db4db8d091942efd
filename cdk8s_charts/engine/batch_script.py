"""The batch script of an arm that no server can run: NxD Inference's own `inference_demo`.

Options as in `inference_demo.py` at tag v0.6.10598 of https://github.com/aws-neuron/neuronx-distributed-inference, the
version inside the 2.26.1 image; a test compares them with a table read off that file. Unfused speculation compiles the
draft beside the target; Medusa reads its heads from `medusa_heads.pt` inside the target's own folder and under names of its
own, so target and heads are put together first, under `MEDUSA_MODEL`. *Not run on AWS.*
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdk8s_charts.engine.command import compiled_path
from cdk8s_charts.engine.dialects import SCRATCH_MOUNT, nxdi_work_folders, weights_path
from experiment.compilation import SPECULATION_LENGTH, compiler_environment

if TYPE_CHECKING:
    from experiment.arms import Arm

MEDUSA_MODEL = f"{SCRATCH_MOUNT}/medusa"
"""Links to the target's files, and `medusa_heads.pt` as `join_heads.py` writes it."""
MEDUSA_TREE = "/plan/medusa-tree.json"
_MODEL_TYPES = {"LlamaForCausalLM": "llama"}


def batch_argv(arm: Arm, *, prompts: tuple[str, ...], max_new_tokens: int) -> list[str]:
    """Compile, generate for each prompt and measure, one request at a time."""
    assert arm.speculation is not None, "a batch script is for arms that speculate"
    serving, compiled, window = arm.serving, compiled_path(arm), str(arm.num_speculative_tokens)
    if arm.speculation.mode == "medusa":
        model = MEDUSA_MODEL
        speculation = [
            *("--is-medusa", "--num-medusa-heads", window),
            *("--medusa-speculation-length", str(SPECULATION_LENGTH)),
            *("--medusa-tree-json", MEDUSA_TREE),
        ]
    else:
        model = weights_path(arm.target)
        speculation = [
            *("--draft-model-path", weights_path(arm.speculation.draft)),
            *("--compiled-draft-model-path", f"{compiled}-draft"),
            *("--speculation-length", window),
        ]
    return [
        *("inference_demo", "--model-type", _MODEL_TYPES[arm.target.model.architecture]),
        *("--task-type", "causal-lm", "run"),
        *("--model-path", model),
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
        *speculation,
        "--benchmark",
        *(word for prompt in prompts for word in ("--prompt", prompt)),
    ]


def batch_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same script."""
    return {**compiler_environment(arm), **nxdi_work_folders(compiled_path(arm)), "HF_HUB_OFFLINE": "1"}
