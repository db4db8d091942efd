"""Arms that no server can run (vanilla unfused, Medusa): one batch Job around NxD Inference's own script each.

They answer no requests and are not compared; the Job's log says what the script measured. An example for whoever wants
to see those modes, as `experiment` marks them (`batch_only`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine.batch_script import (
    MEDUSA_MODEL,
    MEDUSA_TREE,
    batch_argv,
    batch_environment,
    medusa_tree_file,
)
from cdk8s_charts.engine.command import weights_path
from cdk8s_charts.engine.dialect import CHECKPOINTS_MOUNT, SCRATCH_MOUNT
from cdk8s_charts.plain_objects import config_map, content_suffix
from cdk8s_charts.pods import pod, sizes
from cdk8s_charts.pods.devices import hold_devices
from cdk8s_charts.pods.volumes import claim_name
from cdk8s_charts.workloads import artifact_jobs
from cdk8s_charts.workloads.artifact_jobs import DEADLINE_S, checkpoint_address
from experiment.naming import COMPILE_ACCOUNT, batch_of, labels

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment, Prompt


_PROGRAM = Path(__file__).parents[1] / "join_heads.py"
"""Runs in the pod, from the ConfigMap that holds the tree too."""
_ARM_IN_NAME = 45
"""Characters of an arm's name, which with two hashes make the 63 that a Job's name may have. The hash tells apart."""
_JOIN_MEMORY_GIB = 8
"""Five heads of a 7B target in single precision are 3 GB; they are held twice while they are written."""


def batch_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """What the Jobs read before each Job that reads it."""
    found = []
    for arm in experiment.batch_arms:
        found += [_tree(experiment, arm)] if _is_medusa(arm) else []
        found.append(job(experiment, arm))
    return found


def job(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """The suspended Job: compile on local disk, generate, print, end. Nothing is kept but the log."""
    share = sizes.serving(experiment, arm)
    demo = pod.container(
        "inference-demo",
        arm.runtime.image,
        batch_argv(arm, prompts=_prompts(experiment), max_new_tokens=experiment.benchmark.max_tokens),
        environment=batch_environment(arm),
        folder=SCRATCH_MOUNT,
        resources=pod.amounts(
            cpu=str(share.cpu),
            memory=f"{share.memory_gib}Gi",
            ephemeral=f"{sizes.compile_ephemeral_gib(arm)}Gi",
        ),
        security=pod.container_security(writable_root=True, level=arm.serving.pod_security),
    )
    region = ["--region", experiment.cluster.region]
    needed = [
        pod.tool(f"weights-{number}", ["check", checkpoint_address(experiment, weights), *region])
        for number, weights in enumerate(arm.weights)
    ]
    body: pod.PodSpec = {"initContainers": needed, "containers": [demo]}
    hold_devices(body, demo, experiment, arm)
    pod.add_claim_volume(body, "checkpoints", claim_name(experiment, "checkpoints"))
    pod.mount(demo, "checkpoints", CHECKPOINTS_MOUNT)
    pod.add_scratch(body, "scratch", sizes.compile_scratch_gib(arm))
    pod.mount(demo, "scratch", SCRATCH_MOUNT, writable=True)
    pod.share_memory(body, demo, sizes.shared_memory_gib(share.memory_gib))
    if _is_medusa(arm):
        _add_heads(experiment, body, demo, arm)
    pod.on_neuron_nodes(body)
    return artifact_jobs.suspended_job(
        experiment,
        "batch",
        body,
        named=lambda content: f"{arm.name[:_ARM_IN_NAME].rstrip('-')}-{content}",
        account=COMPILE_ACCOUNT,
        only="weights-0",
        deadline_s=DEADLINE_S,
        retries=1,
        non_root=arm.serving.pod_security == "restricted",
        pod_labels=labels(experiment, arm.name, "job"),
        batch=batch_of(experiment, arm),
    )


def _is_medusa(arm: Arm) -> bool:
    return arm.speculation is not None and arm.speculation.mode == "medusa"


def _prompts(experiment: Experiment) -> tuple[str, ...]:
    """The first prompt of each class, as text: the script is an example, not the comparison."""
    first: dict[str, Prompt] = {}
    for prompt in experiment.prompts:
        first.setdefault(prompt.class_name, prompt)
    return tuple(
        prompt.text if prompt.text is not None else prompt.messages[-1][1] for prompt in first.values()
    )


def _tree(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Medusa's tree of candidates, and the program that puts its heads where NxD Inference looks."""
    data = {
        MEDUSA_TREE.rpartition("/")[2]: medusa_tree_file(arm),
        _PROGRAM.name: _PROGRAM.read_text(encoding="utf-8"),
    }
    name = f"{arm.name}-tree-{content_suffix(data)}"
    return config_map(experiment, name, data, labels(experiment, arm.name, "job"))


def _add_heads(experiment: Experiment, body: pod.PodSpec, demo: pod.Container, arm: Arm) -> None:
    """The script reads target and heads from one folder, which two repositories do not make, and by names of its own."""
    target, heads = (weights_path(weights) for weights in arm.weights)
    plan = MEDUSA_TREE.rpartition("/")[0]
    join = pod.container(
        "join-heads",
        arm.runtime.image,
        [
            *("python3", f"{plan}/{_PROGRAM.name}", target, heads),
            *(MEDUSA_MODEL, str(arm.num_speculative_tokens)),
        ],
        environment={"HOME": SCRATCH_MOUNT},
        resources=pod.amounts(cpu="2", memory=f"{_JOIN_MEMORY_GIB}Gi"),
        security=pod.container_security(writable_root=False),
    )
    body["initContainers"].append(join)
    pod.mount(join, "checkpoints", CHECKPOINTS_MOUNT)
    pod.mount(join, "scratch", SCRATCH_MOUNT, writable=True)
    tree = _tree(experiment, arm)
    body["volumes"].append({"name": "tree", "configMap": {"name": tree["metadata"]["name"]}})
    for holder in (join, demo):
        pod.mount(holder, "tree", plan)
