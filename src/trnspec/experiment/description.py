"""The resolved experiment as JSON, and as text in the width of the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from trnspec.core.screen import folded, table, wrapped
from trnspec.core.words import count
from trnspec.experiment import arm_forecast, cost
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.instances import ZONES
from trnspec.experiment.compilation import artifact_key, cold_start_s
from trnspec.experiment.ledger import beside_dollars
from trnspec.experiment.placement import GIB, ArmPlace, arm_memory_bytes, place
from trnspec.experiment.run_price import file_prices, price_text


def as_json(experiment: Experiment) -> dict[str, Any]:
    """Return the resolved experiment as plain data."""
    places = {entry.arm: entry for entry in reversed(place(experiment))}  # the first of each
    cluster, image = experiment.cluster, experiment.node_image
    hours, items = cost.run_hours(experiment), cost.running(experiment)
    prices = [price.as_json() for price in file_prices(experiment, hours)]
    sizes = Counter(prompt.class_name for prompt in experiment.prompts)
    return {
        "valid": True,
        "name": experiment.name,
        "arms": [_arm(arm, places[arm.name]) for arm in experiment.arms],
        "batches": [[arm.name for arm in batch] for batch in experiment.rounds],
        "nodes": experiment.nodes,
        "support": [
            {"runtime": runtime.name, **asdict(said)}
            for runtime in experiment.runtimes
            for said in runtime.support
        ],
        "node_image": image
        and {"release": image.release, "neuron_driver": image.neuron_driver, "source": image.source},
        "capacity": cluster.capacity.model_dump(),
        "off_at_utc": None if cluster.capacity.ends_at else cluster.off_at_utc,
        "prompts": {name: sizes[name] for name in experiment.classes},
        "prompt_format": experiment.prompt_format or None,
        "unknown_until_run": list(_unknowns(experiment)),
        "usd_per_hour": {
            "arms_up": round(cost.per_hour(items), 2),
            "no_trn2_node": round(cost.per_hour(cost.idle(experiment)), 2),
            "prices": [asdict(item) for item in items],
        },
        "first_run": {"trn2_hours": round(hours, 2), "usd": round(prices[0]["usd"], 2)},
        "ways_to_buy": prices,
        "expected": [arm_forecast.as_json(one) for one in arm_forecast.expected(experiment)],
        "beside_dollars": beside_dollars(experiment),
        "should_meet": arm_forecast.should_meet(experiment),
    }


def _arm(arm: Arm, where: ArmPlace) -> dict[str, Any]:
    return {
        "name": arm.name,
        "target": arm.target.model.name,
        "served_model_name": arm.served_name,
        "declared": [text for weights in arm.weights for text in weights.declared],
        "draft": arm.speculation.draft.model.name if arm.speculation else None,
        "mode": arm.speculation.mode if arm.speculation else None,
        "num_speculative_tokens": arm.num_speculative_tokens,
        "max_tokens_per_step": arm.tokens_per_step,
        "runtime": arm.runtime.name,
        "also_changes": list(arm.also_changes),
        "batch": where.batch,
        "node": where.node,
        "devices": list(range(where.first_device, where.first_device + where.devices)),
        "hbm_needed_gib": round(arm_memory_bytes(arm) / GIB, 1),
        "artifact_key": artifact_key(arm),
    }


def _unknowns(experiment: Experiment) -> Iterator[str]:
    """Yield what the file leaves open; a run records it."""
    image, region = experiment.node_image, experiment.cluster.region
    for name in dict.fromkeys(entry.model.name for entry in experiment.weights if entry.revision is None):
        yield f"revision of {name}: resolved when its weights are fetched"
    for tag in dict.fromkeys(runtime.image for runtime in experiment.runtimes):
        if "@sha256:" not in tag:
            yield f"digest of {tag.rsplit('/', 1)[-1]}"
    spans = {arm.name: cold_start_s(arm) for arm in experiment.arms}
    known = {name: span for name, span in spans.items() if span is not None}
    for name, (minimum, maximum) in known.items():
        took = f"{minimum:.0f} to {maximum:.0f}" if maximum > minimum else f"{minimum:.0f}"
        yield f"compile time of {name}: a start without a compile cache took {took} s elsewhere (quoted)"
    if len(known) < len(spans):
        yield f"compile time of {'the other arms' if known else 'each arm'}: no figure is published"
    for runtime in experiment.runtimes:
        if image is not None and runtime.tested_driver not in (None, image.driver_line):
            tested = f"AWS tested it with driver {runtime.tested_driver}"
            yield f"driver {image.neuron_driver} of the node image with {runtime.name}: {tested}"
    if image is not None and len(names := [runtime.name for runtime in experiment.runtimes]) > 1:
        driver = f"driver {image.neuron_driver}, the newest that all take"
        yield f"{' and '.join(names)} on one node: {driver}; the arms also differ in their software"
    if region not in ZONES:
        yield f"region {region}: whether EC2 offers {experiment.instance.name} there (./trnspec preflight {experiment.file} asks)"


def as_text(experiment: Experiment) -> str:
    """Return the resolved experiment as text."""
    following = [f"./trnspec {verb} {experiment.file}" for verb in ("forecast", "preflight")]
    return "\n".join([*folded(_lines(experiment)), "", "next: " + "\nthen: ".join(following)])


def _lines(experiment: Experiment) -> Iterator[str]:
    yield from _heading(experiment)
    yield ""
    for number in range(len(experiment.rounds)):
        yield from [""] if number else ()
        yield from _round(experiment, number)
    gib = experiment.baseline.serving.devices * experiment.instance.hbm_gib_per_device
    yield f"    Place: node:devices. k: draft tokens per step. Yield: tokens from one step. GiB: memory used, of {gib}."
    yield ""
    yield from _declared(experiment)
    yield from _asked(experiment)
    yield from ("", "  known only after a run")
    yield from (f"    {text}" for text in _unknowns(experiment))
    yield ""
    yield from arm_forecast.as_lines(arm_forecast.expected(experiment), cost.node_price(experiment))
    for note in beside_dollars(experiment):
        yield from wrapped(note["text"], "    ", "      ")
    yield ""
    if experiment.expect:
        yield from (*arm_forecast.wanted_lines(experiment), "")
    yield from _cost(experiment)


def _heading(experiment: Experiment) -> Iterator[str]:
    cluster, serving, image = experiment.cluster, experiment.baseline.serving, experiment.node_image
    where = f"{cluster.instance} in {cluster.region}, Kubernetes {cluster.kubernetes}"
    arms, rounds = count(len(experiment.arms), "arm"), count(len(experiment.rounds), "round")
    yield f"{experiment.name}: {arms} in {rounds} on {experiment.nodes} x {where}"
    yield ""
    yield f"  target      {experiment.baseline.target.model.name}"
    yield from (f"              {text}" for weights in experiment.weights for text in weights.declared)
    for runtime in experiment.runtimes:
        yield (
            f"  runtime     {runtime.name}: vLLM {runtime.vllm}, Neuron SDK {runtime.neuron_sdk}, "
            f"driver {runtime.drivers}"
        )
        yield from (f"              {said.status} ({said.date})" for said in runtime.support)
    if image is None:
        return
    sizes = " or ".join(str(arms[0].serving.max_num_seqs) for arms in experiment.by_batch)
    allocation = {"dra": "DRA", "device-plugin": "device plugin"}[serving.allocation]
    yield f"  node image  {image.release}, Neuron driver {image.neuron_driver}"
    yield (
        f"  serving     {count(serving.devices, 'device')} per arm by {allocation}, TP {serving.tensor_parallel} at LNC "
        f"{serving.logical_nc_config}, {sizes} sequences of {serving.max_model_len} tokens"
    )
    if answering := _answering(experiment.baseline):
        yield f"  answers     {answering}"
    bought, how = cluster.capacity, "on demand"
    if bought.kind == "spot":
        limit = f", at most ${bought.max_usd_per_hour:g} per hour per node" if bought.max_usd_per_hour else ""
        how = f"by spot in {cluster.trn2_zone}{limit}"
    elif bought.kind != "on-demand":
        ends = f" until {bought.ends_at}" if bought.ends_at else ""
        how = f"{bought.kind} {bought.reservation_id} in {cluster.trn2_zone}{ends}"
    yield f"  capacity    {how}, at most {count(cluster.max_nodes, 'node')}"
    if vpc := cluster.network.vpc:
        yield f"  existing    VPC {vpc}"
    yield f"  nodes off   {cluster.off_when}"


def _answering(arm: Arm) -> str:
    """Return what the file says about requests and answers of all servers."""
    serving = arm.serving
    options = {
        "model name": serving.served_model_name,
        "chat template of": serving.chat_template and f"{len(serving.chat_template.encode()):,} bytes",
        "tool calls by": serving.tool_call_parser,
        "reasoning by": serving.reasoning_parser,
    }
    return ", ".join(f"{what} {value}" for what, value in options.items() if value)


def _round(experiment: Experiment, number: int) -> Iterator[str]:
    """Yield the table of one round: an arm's place (node:devices), tokens per step, weights and full KV cache."""
    places = {entry.arm: entry for entry in place(experiment) if entry.batch == number}
    arms = experiment.rounds[number]
    headings = ("arm", "place", "draft", "mode", "k", "yield", "GiB", "artifact")
    rows = [_row(experiment, arm, places[arm.name]) for arm in arms]
    yield f"  round {number + 1}" + (f" (starts when round {number} has ended)" if number else "")
    yield from table(headings, rows, indent="    ")


def _row(experiment: Experiment, arm: Arm, where: ArmPlace) -> tuple[str, ...]:
    speculation, runtime = arm.speculation, arm.runtime
    last = where.first_device + where.devices - 1
    devices = f"{where.first_device}-{last}" if where.devices > 1 else f"{where.first_device}"
    own = "" if runtime is experiment.baseline.runtime else f" @{runtime.vllm}"
    mode = speculation.mode if speculation else "-"
    return (
        _clipped(arm.name, 18),
        f"{where.node}:{devices}",
        _clipped(speculation.draft.model.name.rsplit("/", 1)[-1], 15) if speculation else "-",
        mode + own,
        str(arm.num_speculative_tokens or "-"),
        f"1-{arm.tokens_per_step}" if arm.tokens_per_step > 1 else "1",
        f"{arm_memory_bytes(arm) / GIB:.0f}",
        artifact_key(arm),
    )


def _clipped(name: str, length: int) -> str:
    """Return the beginning and the end of a name, which is where a sweep's arms differ."""
    half = (length - 2) // 2
    return name if len(name) <= length else f"{name[:half]}..{name[-half:]}"


def _declared(experiment: Experiment) -> Iterator[str]:
    """Yield differences of arms other than speculation, with the arms that have them."""
    arms_of: dict[tuple[str, ...], list[str]] = {}
    for arm in experiment.arms:
        arms_of.setdefault(arm.also_changes, []).append(arm.name)
    for texts, (first, *others) in arms_of.items():
        if texts:
            yield f"  differs     {first}{f' and {len(others)} more' if others else ''}, besides speculation"
            yield from (f"              {text}" for text in texts)


def _asked(experiment: Experiment) -> Iterator[str]:
    """Yield the prompts and their load: the duration if the cells do not define it, and the loads that exceed the batch."""
    settings, sizes = experiment.benchmark, Counter(prompt.class_name for prompt in experiment.prompts)
    classes = ", ".join(f"{name} {sizes[name]}" for name in experiment.classes)
    if experiment.prompt_format:
        known = count(len(experiment.classes), "class")
        classes = f"{len(experiment.prompts)} of {known}, {experiment.prompt_format}: {classes}"
    yield f"  prompts     {classes}"
    answers = f"temperature {settings.temperature:g}, at most {count(settings.max_tokens, 'token')}"
    loads = f"concurrency {', '.join(map(str, settings.concurrency))}"
    requests = f"at least {count(settings.requests, 'request')} per class"
    yield f"  benchmark   {settings.endpoint}, {answers}, {loads}, {requests}"
    if settings.mixed and len(experiment.classes) > 1:
        yield "              all classes share one load: their prompts take turns"
    batch = [arms[0].serving.max_num_seqs for arms in experiment.by_batch]
    if few := [str(size) for size in batch if size < max(settings.concurrency)]:
        queue = "requests wait for a place in the batch"
        yield f"              above serving.max_num_seqs = {' or '.join(few)} {queue}"
    if settings.lm_eval:
        yield f"  quality     gsm8k, {count(settings.lm_eval, 'question')} per arm"


def _cost(experiment: Experiment) -> Iterator[str]:
    items, hours = cost.running(experiment), cost.run_hours(experiment)
    price, idle = items[0], cost.per_hour(cost.idle(experiment))
    yield f"  first run   {hours:.2f} Trn2 hours, predicted: {price_text(file_prices(experiment, hours))}"
    yield f"  an hour     ${idle:.2f} without Trn2 nodes, until teardown; with {count(price.units, 'node')} ${cost.per_hour(items):.2f}"
    yield f"              ({price.quoted}{f'; {price.note}' if price.note else ''}); storage and traffic are not counted"
