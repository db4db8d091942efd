"""What an experiment resolves to, for a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment import cost
from experiment.artifact import artifact_key
from experiment.placement import GIB, arm_memory_bytes, batches, nodes_needed, place

if TYPE_CHECKING:
    from experiment.arms import Experiment


def as_json(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment as plain data."""
    places = {entry.arm: entry for entry in reversed(place(experiment))}  # the first of each
    capacity, image = experiment.cluster.capacity, experiment.node_image
    return {
        "valid": True,
        "name": experiment.name,
        "arms": [
            {
                "name": arm.name,
                "target": arm.target.model.name,
                "draft": arm.speculation.draft.model.name if arm.speculation else None,
                "mode": arm.speculation.mode if arm.speculation else None,
                "num_speculative_tokens": arm.num_speculative_tokens,
                "max_tokens_per_step": arm.tokens_per_step,
                "runtime": arm.runtime.name,
                "also_changes": list(arm.also_changes),
                "batch_only": arm.batch_only,
                "batch": places[arm.name].batch,
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
        "batches": [[arm.name for arm in batch] for batch in batches(experiment)],
        "nodes": nodes_needed(experiment) if experiment.instance.neuron else 0,
        "support": [
            {"runtime": name, "status": said.status, "date": said.date, "source": said.source}
            for name, runtime in {arm.runtime.name: arm.runtime for arm in experiment.arms}.items()
            for said in runtime.support
        ],
        "node_image": {
            "release": image.release,
            "neuron_driver": image.neuron_driver,
            "source": image.source,
        }
        if image
        else None,
        "capacity": {
            "kind": capacity.kind,
            "reservation_id": capacity.reservation_id,
            "ends_at": capacity.ends_at,
        },
        "off_at_utc": experiment.cluster.off_at_utc,
        "prompts": {name: prompts_of(experiment, name) for name in experiment.classes},
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
        "first_run": _first_run(experiment),
    }


def _first_run(experiment: Experiment) -> dict[str, float] | None:
    """Hours with Trn2 nodes and dollars, predicted; nothing in the lab."""
    if not experiment.instance.neuron:
        return None
    run = cost.run_price(experiment)
    return {"trn2_hours": round(run.hours, 2), "usd": round(run.usd, 2)}


def unknowns(experiment: Experiment) -> tuple[str, ...]:
    """What the file leaves open and a run records."""
    if not experiment.instance.neuron:
        return ("weights and acceptance: the lab trains its own models",)
    loose = dict.fromkeys(entry.model.name for entry in experiment.weights if entry.revision is None)
    images = dict.fromkeys(arm.runtime.image for arm in experiment.arms)
    return (
        *(f"revision of {name}: resolved when its weights are fetched" for name in loose),
        *(f"digest of {image.rsplit('/', 1)[-1]}" for image in images),
        "compile time of each arm: no figure for these models is published",
    )


def prompts_of(experiment: Experiment, class_name: str) -> int:
    """How many prompts a class has."""
    return sum(prompt.class_name == class_name for prompt in experiment.prompts)
