"""What an experiment resolves to, for a person and for a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment import cost
from experiment.artifact import artifact_key
from experiment.placement import GIB, arm_memory_bytes, nodes_needed, place

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment


def as_json(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment as plain data."""
    places = {entry.arm: entry for entry in place(experiment)}
    return {
        "valid": True,
        "name": experiment.name,
        "arms": [
            {
                "name": arm.name,
                "target": arm.target.model.name,
                "draft": arm.speculation.draft.model.name if arm.speculation else None,
                "mode": arm.speculation.mode if arm.speculation else None,
                "num_speculative_tokens": arm.speculation.num_speculative_tokens if arm.speculation else 0,
                "max_tokens_per_step": arm.tokens_per_step,
                "runtime": arm.runtime.name,
                "node": places[arm.name].node,
                "devices": list(
                    range(
                        places[arm.name].first_device,
                        places[arm.name].first_device + places[arm.name].devices,
                    )
                ),
                "hbm_needed_gib": round(arm_memory_bytes(arm) / GIB, 1),
                "artifact_key": artifact_key(arm),
            }
            for arm in experiment.arms
        ],
        "prompts": {name: _count(experiment, name) for name in experiment.classes},
        "unknown_until_run": list(unknowns(experiment)),
        "usd_per_hour": {
            "arms_up": round(cost.per_hour(cost.running(experiment)), 2),
            "no_trn2_node": round(cost.per_hour(cost.idle(experiment)), 2),
            "prices": [
                {
                    "item": item.price.item,
                    "units": item.units,
                    "usd_per_hour": item.price.usd_per_hour,
                    "as_of": item.price.as_of,
                    "source": item.price.source,
                }
                for item in cost.running(experiment)
            ],
        },
    }


def as_text(experiment: Experiment) -> str:
    """The same in at most 100 columns."""
    settings, cluster = experiment.benchmark, experiment.cluster
    lines = [
        f"{experiment.name}: {len(experiment.arms)} arms on {nodes_needed(experiment)} x "
        f"{cluster.instance.name} in {cluster.region}, Kubernetes {cluster.kubernetes}",
        "",
    ]
    places = {entry.arm: entry for entry in place(experiment)}
    for arm in experiment.arms:
        entry = places[arm.name]
        last = entry.first_device + entry.devices - 1
        lines += [
            f"  {arm.name}  ({'baseline' if arm is experiment.baseline else 'treatment'})",
            f"    models    {_models(arm)}",
            f"    runtime   {arm.runtime.name}: vLLM {arm.runtime.vllm}, Neuron SDK {arm.runtime.neuron_sdk}",
            f"    devices   node {entry.node}, {entry.first_device}-{last}: TP {arm.serving.tensor_parallel} at LNC "
            f"{arm.serving.logical_nc_config}, by {arm.serving.allocation.upper()}",
            f"    memory    {arm_memory_bytes(arm) / GIB:.0f} of "
            f"{entry.devices * cluster.instance.hbm_gib_per_device} GiB HBM for weights and full KV cache",
            f"    artifact  {artifact_key(arm)}",
        ]
    classes = ", ".join(f"{name} {_count(experiment, name)}" for name in experiment.classes)
    lines += [
        "",
        f"  prompts     {classes}",
        f"  benchmark   {settings.endpoint}, temperature {settings.temperature:g}, {settings.max_tokens} tokens, "
        f"concurrency {', '.join(map(str, settings.concurrency))}, {settings.requests} requests a cell",
        "",
        "  not known before a run",
        *(f"    {text}" for text in unknowns(experiment)),
        "",
        "  expected cost, quoted list prices (storage and traffic come on top)",
        *(
            f"    {item.usd_per_hour:7.3f} $/h  {item.units} x {item.price.item} ({item.price.as_of})"
            for item in cost.running(experiment)
        ),
        f"    {cost.per_hour(cost.running(experiment)):7.2f}  $/h  with all arms up; "
        f"{cost.per_hour(cost.idle(experiment)):.2f} $/h with no Trn2 node",
    ]
    return "\n".join(lines)


def unknowns(experiment: Experiment) -> tuple[str, ...]:
    """What the file leaves open and a run records."""
    weights = [
        weights
        for arm in experiment.arms
        for weights in (arm.target, *((arm.speculation.draft,) if arm.speculation else ()))
    ]
    loose = dict.fromkeys(entry.model.name for entry in weights if entry.revision is None)
    images = dict.fromkeys(arm.runtime.image for arm in experiment.arms)
    return (
        *(f"revision of {name}: resolved when its weights are fetched" for name in loose),
        *(f"digest of {image.rsplit('/', 1)[-1]}" for image in images),
        "compile time of each arm: no figure for these models is published",
    )


def _models(arm: Arm) -> str:
    if arm.speculation is None:
        return f"{arm.target.model.name}, one token a step"
    return (
        f"{arm.target.model.name} + {arm.speculation.draft.model.name}, {arm.speculation.mode}, "
        f"k = {arm.speculation.num_speculative_tokens}: 1 to {arm.tokens_per_step} tokens a step"
    )


def _count(experiment: Experiment, class_name: str) -> int:
    return sum(prompt.class_name == class_name for prompt in experiment.prompts)
