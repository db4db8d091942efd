"""Arms that no server can run (vanilla unfused, Medusa): one batch Job around NxD Inference's own `inference_demo` each.

They answer no requests and are not compared; the Job's log says what the script measured. An example for people who want to
see those modes, as `experiment` marks them (`batch_only`).

Options as in `inference_demo.py` at tag v0.6.10598 of https://github.com/aws-neuron/neuronx-distributed-inference, the
version inside the 2.26.1 image; a test compares them with a table read off that file. Unfused speculation compiles the
draft beside the target; Medusa reads its heads from `medusa_heads.pt` inside the target's own folder and under names of its
own, so target and heads are put together first, under `_MEDUSA_MODEL`. *Not run on AWS.*
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts import pods, vllm_command
from cdk8s_charts.plain_objects import config_map, content_suffix
from cdk8s_charts.workloads.artifact_jobs import suspended_job, weights_checks
from experiment.compilation import SPECULATION_LENGTH, compiler_environment, tree
from experiment.naming import COMPILE_ACCOUNT, batch_of, labels
from experiment.placement import pod_share

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment


_PROGRAM = Path(__file__).parents[1] / "join_heads.py"
"""Runs in the pod, from the ConfigMap that holds the tree too."""
_PLAN_MOUNT = "/plan"
_TREE_FILE = "medusa-tree.json"
_MEDUSA_MODEL = f"{vllm_command.SCRATCH_MOUNT}/medusa"
"""Links to the target's files, and `medusa_heads.pt` as `join_heads.py` writes it."""
_MODEL_TYPES = {"LlamaForCausalLM": "llama"}
_ARM_IN_NAME = 45
"""Characters of an arm's name, which with two hashes make the 63 that a Job's name may have. The hash tells apart."""
_JOIN_MEMORY_GIB = 8
"""Five heads of a 7B target in single precision are 3 GB; they are held twice while they are written."""


def batch_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """The Job of each such arm, after what it reads."""
    return [manifest for arm in experiment.batch_arms for manifest in job_and_files(experiment, arm)]


def job_and_files(experiment: Experiment, arm: Arm) -> list[dict[str, Any]]:
    """The suspended Job: compile on local disk, generate, print, end. Nothing is kept but the log."""
    share = pod_share(arm)
    environment = {
        **compiler_environment(arm),
        **vllm_command.nxdi_work_folders(vllm_command.compiled_path(arm)),
        "HF_HUB_OFFLINE": "1",
    }
    demo = pods.container(
        "inference-demo",
        arm.runtime.image,
        command(experiment, arm),
        environment=environment,
        folder=vllm_command.SCRATCH_MOUNT,
        resources=pods.part_of_node(share, disk_gib=pods.compile_ephemeral_gib(arm)),
        security=pods.container_security(writable_root=True, level=arm.serving.pod_security),
    )
    body: pods.PodSpec = {"initContainers": weights_checks(experiment, arm), "containers": [demo]}
    pods.hold_devices(body, demo, experiment, arm)
    pods.mount_store(experiment, "checkpoints", body, demo)
    pods.add_scratch(body, pods.compile_scratch_gib(arm), demo)
    pods.share_memory(body, demo, share)
    files = []
    if arm.speculation is not None and arm.speculation.mode == "medusa":
        files.append(_medusa_files(experiment, arm))
        _join_heads(body, demo, arm, files[0]["metadata"]["name"])
    pods.on_neuron_nodes(experiment, body)
    job = suspended_job(
        experiment,
        "batch",
        body,
        named=lambda content: f"{arm.name[:_ARM_IN_NAME].rstrip('-')}-{content}",
        account=COMPILE_ACCOUNT,
        only="weights-0",
        retries=1,
        level=arm.serving.pod_security,
        pod_labels=labels(experiment, arm.name, "job"),
        batch=batch_of(experiment, arm),
    )
    return [*files, job]


def command(experiment: Experiment, arm: Arm) -> list[str]:
    """What the arm's pod runs."""
    return batch_argv(arm, prompt=_prompt(experiment), max_new_tokens=experiment.benchmark.max_tokens)


def files(arm: Arm) -> dict[str, str]:
    """What the command reads that is not a model, by where the pod mounts it."""
    if arm.speculation is None or arm.speculation.mode != "medusa":
        return {}
    return {f"{_PLAN_MOUNT}/{_TREE_FILE}": json.dumps(tree(arm.num_speculative_tokens))}


def _prompt(experiment: Experiment) -> str:
    """The first one, as text: several would be one batch, which neither mode takes, and the benchmark draws its own input."""
    prompt = experiment.prompts[0]
    return prompt.text if prompt.text is not None else prompt.messages[-1][1]


def _medusa_files(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Medusa's tree of candidates, and the program that puts its heads where NxD Inference looks."""
    data = {
        _TREE_FILE: json.dumps(tree(arm.num_speculative_tokens)),
        _PROGRAM.name: _PROGRAM.read_text(encoding="utf-8"),
    }
    name = f"{arm.name}-tree-{content_suffix(data)}"
    return config_map(experiment, name, data, labels(experiment, arm.name, "job"))


def _join_heads(body: pods.PodSpec, demo: pods.Container, arm: Arm, files: str) -> None:
    """The script reads target and heads from one folder, which two repositories do not make, and by names of its own."""
    target, heads = (vllm_command.weights_path(weights) for weights in arm.weights)
    program = ["python3", f"{_PLAN_MOUNT}/{_PROGRAM.name}", target, heads]
    join = pods.container(
        "join-heads",
        arm.runtime.image,
        [*program, _MEDUSA_MODEL, str(arm.num_speculative_tokens)],
        environment={"HOME": vllm_command.SCRATCH_MOUNT},
        resources=pods.amounts(cpu="2", memory=f"{_JOIN_MEMORY_GIB}Gi"),
        security=pods.container_security(writable_root=False),
    )
    body["initContainers"].append(join)
    pods.mount(join, "checkpoints", vllm_command.CHECKPOINTS_MOUNT)
    pods.mount(join, "scratch", vllm_command.SCRATCH_MOUNT, writable=True)
    pods.add_volume(body, "tree", _PLAN_MOUNT, join, demo, configMap={"name": files})


def batch_argv(arm: Arm, *, prompt: str, max_new_tokens: int) -> list[str]:
    """Compile, generate for a prompt and measure, one request at a time.

    Medusa asserts on-device sampling (`models/model_wrapper.py`), whose `global_topk` tokens of each head its tree counts in tens
    (`TOPK` of https://github.com/aws-neuron/neuronx-distributed, utils/medusa_utils.py); unfused speculation compares logits.
    """
    assert arm.speculation is not None, "a batch script is for arms that speculate"
    serving, compiled, window = arm.serving, vllm_command.compiled_path(arm), str(arm.num_speculative_tokens)
    if arm.speculation.mode == "medusa":
        model = _MEDUSA_MODEL
        speculation = [
            *("--is-medusa", "--num-medusa-heads", window),
            *("--medusa-speculation-length", str(SPECULATION_LENGTH)),
            *("--medusa-tree-json", f"{_PLAN_MOUNT}/{_TREE_FILE}"),
            *("--on-device-sampling", "--top-k", "10", "--global-topk", "10"),
        ]
    else:
        model = vllm_command.weights_path(arm.target)
        speculation = [
            *("--draft-model-path", vllm_command.weights_path(arm.speculation.draft)),
            *("--compiled-draft-model-path", f"{compiled}-draft"),
            *("--speculation-length", window),
            *("--top-k", "1"),
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
        *speculation,
        "--benchmark",
        *("--prompt", prompt),
    ]
