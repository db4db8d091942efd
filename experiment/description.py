"""What an experiment resolves to: for a machine, and for a person as wide as the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmark.cell_size import cell_requests
from core.screen import folded, table
from core.words import count
from experiment import cost, expected
from experiment.catalogue.prices import UNKNOWN
from experiment.compilation import artifact_key
from experiment.placement import GIB, arm_memory_bytes, batches, nodes_needed, place
from experiment.prompts import replayed, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.arms import Arm, Experiment
    from experiment.model import Cluster
    from experiment.placement import Place


def as_json(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment as plain data."""
    places = {entry.arm: entry for entry in reversed(place(experiment))}  # the first of each
    capacity, image, run = experiment.cluster.capacity, experiment.node_image, cost.run_price(experiment)
    return {
        "valid": True,
        "name": experiment.name,
        "arms": [_arm(arm, places[arm.name]) for arm in experiment.arms],
        "batches": [[arm.name for arm in batch] for batch in batches(experiment)],
        "nodes": nodes_needed(experiment) if experiment.instance.neuron else 0,
        "support": [
            {"runtime": name, **asdict(said)}
            for name, runtime in {arm.runtime.name: arm.runtime for arm in experiment.arms}.items()
            for said in runtime.support
        ],
        "node_image": image
        and {"release": image.release, "neuron_driver": image.neuron_driver, "source": image.source},
        "capacity": capacity.model_dump(exclude={"availability_zone"}),
        "off_at_utc": None
        if experiment.cluster.nodes_of or capacity.ends_at
        else experiment.cluster.off_at_utc,
        "prompts": {name: _prompts_of(experiment, name) for name in experiment.classes},
        "prompt_format": experiment.prompt_format or None,
        "unknown_until_run": list(_unknowns(experiment)),
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
        "first_run": {"trn2_hours": round(run.hours, 2), "usd": round(run.usd, 2)}
        if experiment.instance.neuron
        else None,
        "expected": [expected.as_json(one) for one in expected.expected(experiment)],
        "should_meet": expected.should_meet(experiment),
    }


def _arm(arm: Arm, where: Place) -> dict[str, Any]:
    return {
        "name": arm.name,
        "target": arm.target.model.name,
        "declared": [text for weights in arm.weights for text in weights.declared],
        "draft": arm.speculation.draft.model.name if arm.speculation else None,
        "mode": arm.speculation.mode if arm.speculation else None,
        "num_speculative_tokens": arm.num_speculative_tokens,
        "max_tokens_per_step": arm.tokens_per_step,
        "runtime": arm.runtime.name,
        "also_changes": list(arm.also_changes),
        "batch_only": arm.batch_only,
        "batch": where.batch,
        "node": where.node,
        "devices": list(range(where.first_device, where.first_device + where.devices)),
        "hbm_needed_gib": round(arm_memory_bytes(arm) / GIB, 1),
        "artifact_key": artifact_key(arm),
    }


def _unknowns(experiment: Experiment) -> tuple[str, ...]:
    """What the file leaves open and a run records."""
    if not experiment.instance.neuron:
        return ("weights and acceptance: the lab trains its own models",)
    loose = dict.fromkeys(entry.model.name for entry in experiment.weights if entry.revision is None)
    images = dict.fromkeys(arm.runtime.image for arm in experiment.arms)
    return (
        *(f"revision of {name}: resolved when its weights are fetched" for name in loose),
        *(f"digest of {image.rsplit('/', 1)[-1]}" for image in images if "@sha256:" not in image),
        *_compile_times(experiment),
        *_untested_drivers(experiment),
        *_unknown_region(experiment),
    )


def _unknown_region(experiment: Experiment) -> list[str]:
    price, region = cost.node_price(experiment), experiment.cluster.region
    if not price.as_of.startswith(UNKNOWN):
        return []
    return [
        f"region {region}: whether EC2 offers {experiment.instance.name} there (./trnspec preflight asks)",
        f"price of {price.item}: every sum counts {price.as_of.partition('; ')[2]}",
    ]


def _untested_drivers(experiment: Experiment) -> list[str]:
    """Runtimes that AWS tested with another driver than the node image has."""
    image, runtimes = experiment.node_image, {arm.runtime.name: arm.runtime for arm in experiment.arms}
    return [
        f"driver {image.neuron_driver} of the node image with {name}: AWS tested it with driver {runtime.tested_driver}"
        for name, runtime in runtimes.items()
        if image is not None and runtime.tested_driver not in (None, image.driver_line)
    ]


def _compile_times(experiment: Experiment) -> list[str]:
    """What is published of them, and for which arms nothing is."""
    known = {arm.name: cost.cold_start_s(arm) for arm in experiment.served_arms}
    found = [
        f"compile time of {name}: a start without a compile cache took {span[0]:.0f}"
        + (f" to {span[1]:.0f}" if span[1] > span[0] else "")
        + " s elsewhere (quoted)"
        for name, span in known.items()
        if span is not None
    ]
    which = "the other arms" if found else "each arm"
    return [
        *found,
        *([f"compile time of {which}: no figure is published"] if len(found) < len(known) else []),
    ]


def _prompts_of(experiment: Experiment, class_name: str) -> int:
    """How many prompts a class has."""
    return sum(prompt.class_name == class_name for prompt in experiment.prompts)


def _prompts(experiment: Experiment) -> str:
    classes = ", ".join(f"{name} {_prompts_of(experiment, name)}" for name in experiment.classes)
    if experiment.prompt_format:
        known = count(len(experiment.classes), "class")
        classes = f"{len(experiment.prompts)} of {known}, {experiment.prompt_format}: {classes}"
    return f"  prompts     {classes}"


def as_text(experiment: Experiment) -> str:
    """The same as lines."""
    settings = experiment.benchmark
    return "\n".join(
        folded(
            [
                *_heading(experiment),
                "",
                *(line for number in range(len(batches(experiment))) for line in _batch(experiment, number)),
                "",
                *_declared(experiment),
                _prompts(experiment),
                f"  benchmark   {settings.endpoint}, temperature {settings.temperature:g}, {count(settings.max_tokens, 'token')}, "
                f"{_loads(experiment)}",
                *(f"              {text}" for text in _long(experiment)),
                *(
                    [f"  quality     gsm8k, {count(settings.lm_eval.limit, 'question')} an arm"]
                    if settings.lm_eval
                    else []
                ),
                "",
                "  not known before a run",
                *(f"    {text}" for text in _unknowns(experiment)),
                "",
                *expected.as_lines(expected.expected(experiment)),
                *([""] if experiment.device_arms else []),
                *expected.wanted_lines(experiment),
                *([""] if experiment.expect else []),
                *_cost(experiment),
            ]
        )
    )


def _loads(experiment: Experiment) -> str:
    settings = experiment.benchmark
    each = f"{count(settings.requests, 'request')} an arm"
    if not replayed(experiment.prompts):
        each = f"{count(settings.requests, 'request')} a class or more"
    if timed(experiment.prompts):
        return f"recorded arrivals in {cost.replay_s(experiment):g} s, {each}"
    if settings.load is None:
        return f"concurrency {', '.join(map(str, settings.concurrency))}, {each}"
    by = "a second" if settings.load.search_rate else "at once"
    low, high = settings.load.search_rate or settings.load.search or (1, 1)
    return f"{low:g} to {high:g} requests {by}, {cell_requests(settings.requests)} a class or more"


def _long(experiment: Experiment) -> Iterator[str]:
    """How long it loads where its cells alone do not say it, and which loads are a queue."""
    settings = experiment.benchmark
    sizes = [arms[0].serving.max_num_seqs for arms in experiment.by_batch]
    if settings.mixed and len(experiment.classes) > 1:
        yield "classes share a cell, asked in turn"
    if settings.load or settings.rounds or settings.duration or settings.starts > 1:
        yield cost.budget_text(experiment)
    if needed := cost.objective_text(experiment):
        yield needed
    if few := [str(size) for size in sizes if size < (settings.most_at_once or 0)]:
        yield f"above serving.max_num_seqs = {' or '.join(few)} requests wait for a place in the batch"


def _declared(experiment: Experiment) -> list[str]:
    """What arms differ in beside speculation, each once with the arms that it holds for."""
    found: dict[tuple[str, ...], list[str]] = {}
    for arm in experiment.arms:
        if arm.also_changes:
            found.setdefault(arm.also_changes, []).append(arm.name)
    return [
        line
        for texts, (first, *others) in found.items()
        for line in (
            f"  declared    {first}{f' and {len(others)} more' if others else ''}, beside speculation",
            *(f"              {text}" for text in texts),
        )
    ]


def _heading(experiment: Experiment) -> list[str]:
    cluster, serving = experiment.cluster, experiment.baseline.serving
    standing = nodes_needed(experiment)
    where = (
        f"{standing} x {cluster.instance} in {cluster.region}, Kubernetes {cluster.kubernetes}"
        if experiment.instance.neuron
        else "this machine"
    )
    runtimes = dict.fromkeys(arm.runtime.name for arm in experiment.arms)
    sizes = " or ".join(str(arms[0].serving.max_num_seqs) for arms in experiment.by_batch)
    lines = [
        f"{experiment.name}: {count(len(experiment.arms), 'arm')} in {count(len(batches(experiment)), 'batch')} on {where}",
        "",
        f"  target      {experiment.baseline.target.model.name}",
        *(f"              {text}" for weights in experiment.weights for text in weights.declared),
        *(line for name in runtimes for line in _runtime(experiment, name)),
    ]
    if experiment.node_image is None:
        return lines
    return [
        *lines,
        f"  node image  {experiment.node_image.release}, Neuron driver {experiment.node_image.neuron_driver}",
        f"  serving     {count(serving.devices, 'device')} an arm by "
        f"{_ALLOCATION[serving.allocation]}, TP {serving.tensor_parallel} at LNC {serving.logical_nc_config}, "
        f"{sizes} x {serving.max_model_len} tokens",
        f"  capacity    {_capacity(cluster)}",
        *([f"  existing    {others}"] if (others := cost.of_others(experiment)) else ()),
        f"  off         {cluster.off_when}; {count(cluster.nodes, 'Trn2 node')} at deploy time",
    ]


_ALLOCATION = {"dra": "DRA", "device-plugin": "device plugin"}


def _runtime(experiment: Experiment, name: str) -> list[str]:
    runtime = next(arm.runtime for arm in experiment.arms if arm.runtime.name == name)
    sdk = f", Neuron SDK {runtime.neuron_sdk}" if runtime.neuron_sdk else ""
    driver = f", driver {runtime.drivers}" if runtime.drivers else ""
    return [
        f"  runtime     {name}: vLLM {runtime.vllm}{sdk}{driver}",
        *(f"              {said.status} ({said.date})" for said in runtime.support),
    ]


def _capacity(cluster: Cluster) -> str:
    bought = cluster.capacity
    limit = f"at most {count(cluster.max_nodes, 'node')}"
    if bought.kind == "on-demand":
        return f"on demand, {limit}"
    ends = f" until {bought.ends_at}" if bought.ends_at else ""
    return f"{bought.kind} {bought.reservation_id} in {bought.availability_zone}{ends}, {limit}"


def _batch(experiment: Experiment, number: int) -> list[str]:
    """One table a batch: where an arm stands (node:devices), its tokens a step, its weights and full KV cache."""
    places = {entry.arm: entry for entry in place(experiment) if entry.batch == number}
    arms = batches(experiment)[number]
    gib = arms[0].serving.devices * experiment.instance.hbm_gib_per_device
    rows: list[tuple[str, ...]] = [
        ("arm", "place", "draft", "mode", "k", "tokens", f"of {gib} GiB" if gib else "", "artifact")
    ]
    rows += [_row(experiment, arm, places[arm.name]) for arm in arms]
    first = "" if number == 0 else " (raised when the arms before it are lowered)"
    title = f"  batch {number + 1}{first}"
    return [
        title,
        *table(rows[0], rows[1:], indent="    "),
        *([""] if number + 1 < len(batches(experiment)) else []),
    ]


def _row(experiment: Experiment, arm: Arm, where: Place) -> tuple[str, ...]:
    speculation, runtime = arm.speculation, arm.runtime
    instance = experiment.instance
    last = where.first_device + where.devices - 1
    devices = f"{where.first_device}-{last}" if where.devices > 1 else f"{where.first_device}"
    own = "" if runtime is experiment.baseline.runtime else f" @{runtime.vllm}"
    return (
        _clipped(arm.name, 18),
        f"{where.node}:{devices}" if instance.neuron else "-",
        _clipped(speculation.draft.model.name.rsplit("/", 1)[-1], 15) if speculation else "-",
        ((speculation.mode + (" (Job)" if arm.batch_only else "")) if speculation else "-") + own,
        str(arm.num_speculative_tokens or "-"),
        f"1-{arm.tokens_per_step}" if arm.tokens_per_step > 1 else "1",
        f"{arm_memory_bytes(arm) / GIB:.0f}" if instance.neuron else "-",
        artifact_key(arm) if instance.neuron else "-",
    )


def _clipped(name: str, length: int) -> str:
    """The beginning and the end of a name, which is where a sweep's arms differ."""
    half = (length - 2) // 2
    return name if len(name) <= length else f"{name[:half]}..{name[-half:]}"


def _cost(experiment: Experiment) -> list[str]:
    return [
        "  expected cost, quoted list prices (storage and traffic come on top)",
        *(
            f"    {item.usd_per_hour:7.3f} $/h  {item.units} x {item.price.item} ({item.price.as_of})"
            for item in cost.running(experiment)
        ),
        f"    {cost.per_hour(cost.running(experiment)):7.2f}  $/h  with the arms of the largest batch up; "
        f"{cost.per_hour(cost.idle(experiment)):.2f} $/h with no Trn2 node",
        *_run(experiment),
    ]


def _run(experiment: Experiment) -> list[str]:
    if not experiment.instance.neuron:
        return []
    run = cost.run_price(experiment)
    return [
        f"    {run.usd:7.2f}  $    a first run of {run.hours:.2f} Trn2 hours, predicted (its parts: `cost` of this file)"
    ]
