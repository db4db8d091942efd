"""What an experiment costs: an hour, a run, and an answer by each way of buying its nodes, from dated prices."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmark.cell_size import SETS_A_START, block_s, cell_requests, search_cells, set_size, sets_in_all
from benchmark.objectives import need
from core.words import count
from experiment.arms import Arm, Experiment
from experiment.catalogue.prices import BLOCK_RATES, NODE_RATES, PRICES, NodeRate, Price
from experiment.catalogue.published import PLAIN_TPOT_S
from experiment.compilation import cold_start_like, cold_start_s
from experiment.placement import compilations_at_once, nodes_needed, rounds
from experiment.prompts import effective_prompts, replayed

SYSTEM_NODES = 2
"""One a zone, so that DNS outlives a node."""
SYSTEM_VOLUME_GIB = 150
"""Holds two Neuron images, which the proof of the arguments pulls (`cdk8s_charts/pods.py`), beside the other images, the
fetch Job's files and the mounts' caches, below the 85 % at which the kubelet begins to remove images."""
NEURON_VOLUME_GIB = 100
"""The system's disk, where images and pods live on local NVMe."""
BASTION_VOLUME_GIB = 8
SERVICES = (
    *("ecr.api", "ecr.dkr", "sts", "logs", "monitoring", "eks", "eks-auth"),
    *("ssm", "ssmmessages", "ec2messages", "ec2"),
)
"""With `network.interface_endpoints`, what nodes, add-ons, pods and the way in call: images, credentials (`eks-auth` is Pod
Identity's), metrics, logs, the session manager, and `ec2` for the network plugin
(https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html)."""
BLOCK_END_H = 1.0
"""The last hour of a block, in which its nodes are already set to 0."""
NODE_START_H = 0.25
VERIFY_H = 0.05
LOAD_H = 0.25
COMPILE_H = 1.0
"""Where no time is published: NxD Inference's, and a drafting arm's."""
QUALITY_TOKENS = 512
"""The longest answer to a question of `lm_eval`."""


@dataclass(frozen=True)
class Item:
    """Units of one priced thing."""

    price: Price
    units: int

    @property
    def usd_per_hour(self) -> float:
        """Dollars an hour for all units."""
        return self.price.usd_per_hour * self.units


def idle(experiment: Experiment) -> tuple[Item, ...]:
    """What is billed to the experiment while no Trn2 node runs; storage and traffic come on top, and dashboards beyond the three
    that an account has free.

    Alarms bill by the metrics that they look at: of each cell of an arm its errors and its slowest tokens, once for the arm and,
    the errors, once for each silence; then the run, the nodes and four counts of the switch-off.
    """
    if not experiment.instance.neuron:
        return (Item(PRICES["lab"], 1),)
    cluster, network, serve = experiment.cluster, experiment.cluster.network, experiment.serve
    own_cluster, own_network = cluster.existing is None, network.vpc is None
    system = SYSTEM_NODES if cluster.brings("system-nodes") else 0
    ways_out = network.nat_gateways if own_network else 0
    zones = {*cluster.availability_zones, cluster.trn2_zone}
    endpoints = len(SERVICES) * len(zones) if own_network and network.interface_endpoints else 0
    way_in = int(own_cluster and not cluster.admin_cidrs)
    cells = len(experiment.classes) * max(1, len(experiment.benchmark.known_concurrency))
    silences = 1 if cluster.existing else 2
    of_cells = len(experiment.served_arms) * cells * (2 + silences)
    units = {
        "control plane": int(own_cluster),
        "NAT gateway": ways_out,
        "public IPv4": ways_out,
        "interface endpoint": endpoints,
        "system node": system,
        "way in": way_in,
        "gp3 GiB": system * SYSTEM_VOLUME_GIB + way_in * BASTION_VOLUME_GIB,
        "load balancer": int(serve is not None and serve.certificate_arn is not None),
        "KMS key": 2 + own_cluster,  # buckets, notices, secrets
        "alarm metric": of_cells + silences + (0 if cluster.nodes_of else 4),
        "composite alarm": silences,
        "Container Insights": int(cluster.brings("amazon-cloudwatch-observability")),
        "control plane logs": int(own_cluster),
        "flow logs": int(own_network),
    }
    return tuple(Item(PRICES[name], number) for name, number in units.items() if number)


def of_others(experiment: Experiment) -> str:
    """What the experiment uses and somebody else pays; empty where it has everything of its own."""
    cluster = experiment.cluster
    shared = f"nodes and add-ons of {cluster.nodes_of}" if cluster.nodes_of else ", ".join(cluster.provided)
    vpc, existing = cluster.network.vpc, cluster.existing
    return "; ".join(filter(None, (vpc and f"VPC {vpc}", existing and f"cluster {existing}", shared)))


def running(experiment: Experiment) -> tuple[Item, ...]:
    """What is billed while the largest batch of arms runs."""
    if not experiment.instance.neuron:
        return idle(experiment)
    nodes = nodes_needed(experiment)
    volumes = Item(PRICES["gp3 GiB"], nodes * NEURON_VOLUME_GIB)
    return (Item(node_price(experiment), nodes), volumes, *idle(experiment))


def node_price(experiment: Experiment) -> Price:
    """The price of a Trn2 node that counts in sums, for the way of buying it that the file names. Its note says where that is the rate
    of a Capacity Block because nobody published another."""
    name, region, kind = experiment.instance.name, experiment.cluster.region, experiment.cluster.capacity.kind
    if not experiment.instance.neuron:
        return PRICES["lab"]
    here = [rate for rate in NODE_RATES if (rate.instance, rate.kind, rate.region) == (name, kind, region)]
    own = [rate for rate in here if rate.zone == experiment.cluster.trn2_zone]
    if kind == "spot" and here:
        rate = min(own or here, key=lambda one: one.usd_per_hour)
        return _price(rate, f"{name}, spot, {rate.place}", note=f"it changes all the time: {_spread(rate)}")
    rate, bought = BLOCK_RATES[name], f"{name}, Capacity Block rate"
    if kind == "spot":
        note = f"no spot price is published for {region}: the rate of a Capacity Block in {rate.region} counts instead"
    elif kind == "capacity-block":
        note = (
            ""
            if rate.region == region
            else f"no block is published for {region}: the rate of {rate.region} counts"
        )
    else:
        note = (
            f"no on-demand price is published: the rate of a Capacity Block in {rate.region} counts instead"
        )
    return _price(rate, f"{bought}, {rate.region}", note=note)


def _price(rate: NodeRate, item: str, *, note: str) -> Price:
    return Price(item=item, usd_per_hour=rate.usd_per_hour, as_of=rate.as_of, source=rate.source, note=note)


def _spread(rate: NodeRate) -> str:
    if rate.low_usd is None or rate.high_usd is None:
        return f"${rate.usd_per_hour:.2f} on {rate.as_of}"
    return f"${rate.low_usd:.2f} to ${rate.high_usd:.2f} in the 30 days before {rate.as_of}"


def arm_usd_per_hour(experiment: Experiment, arm: Arm) -> float:
    """An arm's part of its Trn2 node, in proportion to its devices."""
    if not experiment.instance.neuron:
        return 0.0
    return node_price(experiment).usd_per_hour * arm.serving.devices / experiment.instance.devices


def per_hour(items: Iterable[Item]) -> float:
    """Dollars an hour."""
    return sum(item.usd_per_hour for item in items)


@dataclass(frozen=True)
class RunPart:
    """One part of a run with Trn2 nodes up."""

    step: str
    hours: float
    assumption: str


@dataclass(frozen=True)
class RunPrice:
    """What a run takes from the first Trn2 node to the last, and everything that is billed in that time."""

    parts: tuple[RunPart, ...]
    """Empty where the hours were given."""
    hours: float
    usd: float


def run_price(
    experiment: Experiment,
    *,
    to_compile: int | None = None,
    hours: float | None = None,
) -> RunPrice:
    """The price of a run in which `to_compile` artifacts do not exist yet (default: none of its arms' exists).

    Predicted from assumptions that the parts name; `hours` replaces the prediction.
    """
    parts = () if hours is not None else _parts(experiment, to_compile)
    length = sum(part.hours for part in parts) if hours is None else hours
    return RunPrice(parts=parts, hours=length, usd=length * per_hour(running(experiment)))


@dataclass(frozen=True, kw_only=True)
class PurchaseOption:
    """One way of buying the nodes of an answer, in one place, with the dollars of the whole answer."""

    kind: str
    region: str
    zone: str | None
    usd_per_hour: float
    """The rate of one node."""
    low_usd: float
    """At the lowest price of 30 days; `usd` where the price does not change."""
    usd: float
    """All nodes and, while they run, what else bills in that time."""
    high_usd: float
    hours_used: float
    hours_billed: float
    """Hours of a node that are paid: a block is paid to its end."""
    as_of: str
    source: str

    @property
    def text(self) -> str:
        """As one part of a sentence."""
        where = self.zone or self.region
        if self.kind == "capacity-block":
            hours = f"{self.hours_billed:g} hours in {where}, of which this uses {self.hours_used:.1f}"
            return f"by Capacity Block ${self.usd:,.0f} for {hours}"
        if self.kind == "on-demand":
            return f"on demand ${self.usd:,.0f} in {where} if it can be had"
        low, high = f"{self.low_usd:,.0f}", f"{self.high_usd:,.0f}"
        return f"by spot ${low}{f' to ${high}' if low != high else ''} in {where} if it can be had"


def purchase_options(
    experiment: Experiment, hours: float, rates: Iterable[NodeRate] = NODE_RATES
) -> tuple[PurchaseOption, ...]:
    """What an answer that takes so many hours costs by each rate of its instance type, wherever that is; the cheapest first."""
    if not experiment.instance.neuron:
        return ()
    nodes = nodes_needed(experiment)
    beside = hours * (per_hour(running(experiment)) - nodes * node_price(experiment).usd_per_hour)
    ways = [
        _way(rate, hours, nodes=nodes, beside=beside)
        for rate in rates
        if rate.instance == experiment.instance.name
    ]
    return tuple(sorted(ways, key=lambda way: way.usd))


def _way(rate: NodeRate, hours: float, *, nodes: int, beside: float) -> PurchaseOption:
    billed = hours
    if rate.smallest_h:
        billed = rate.smallest_h + 24 * max(0, math.ceil((hours + BLOCK_END_H - rate.smallest_h) / 24))
    low, usd, high = (
        nodes * billed * (rate.usd_per_hour if price is None else price) + beside
        for price in (rate.low_usd, rate.usd_per_hour, rate.high_usd)
    )
    return PurchaseOption(
        kind=rate.kind,
        region=rate.region,
        zone=rate.zone,
        usd_per_hour=rate.usd_per_hour,
        low_usd=low,
        usd=usd,
        high_usd=high,
        hours_used=hours,
        hours_billed=billed,
        as_of=rate.as_of,
        source=rate.source,
    )


def purchase_text(ways: Iterable[PurchaseOption], *, home: str = "") -> str:
    """The cheapest of each way of buying, in one sentence for all outputs; empty without any. The region `home` goes first where a
    way is published for it."""
    cheapest: dict[str, PurchaseOption] = {}
    for way in sorted(ways, key=lambda one: (one.region != home, one.usd)):
        cheapest.setdefault(way.kind, way)
    return "; ".join(way.text for way in cheapest.values())


def loading_s(experiment: Experiment, arms: Sequence[Arm], *, answer_s: float, worst: bool = False) -> float:
    """Seconds for which the arms of a round are loaded, in turns, where each answer takes `answer_s`. A search is taken to spread
    its cells over its range; in the `worst` case all of them are as long as the longest."""
    settings, load = experiment.benchmark, experiment.benchmark.load
    part = SETS_A_START / sets_in_all(settings.starts)  # of the first cell, which is measured once more
    if replayed(experiment.prompts):
        return _passes_s(experiment, _replayed_s(experiment, arms, answer_s))
    if load is None:
        found = [cell_s(experiment, arms, level, answer_s=answer_s) for level in settings.concurrency]
        cells = 1 if settings.mixed else len(experiment.classes)
        return _passes_s(experiment, cells * sum(found)) + part * found[0]
    low, high = load.search_rate or load.search or (1, 1)
    steps = search_cells(load.budget.cells, settings.starts) - 1
    levels = [low * (high / low) ** (step / steps) for step in range(steps + 1)]
    found = [cell_s(experiment, arms, level, answer_s=answer_s) for level in levels]
    limits = [load.budget.minutes * 60] if load.budget.minutes else []
    usd_per_hour = sum(arm_usd_per_hour(experiment, arm) for arm in arms)
    limits += [load.budget.usd / usd_per_hour * 3600] if load.budget.usd and usd_per_hour else []
    # A cell is begun before the limit, and the first, at the lower end, is measured once more.
    whole_s = max(found) * len(found) if worst else sum(found)
    return min([whole_s, *(limit_s + max(found) for limit_s in limits)]) + part * found[0]


def _passes_s(experiment: Experiment, once_s: float) -> float:
    """All passes, of which one takes `once_s`; a duration is the least, and the rest of a pass comes on top."""
    settings = experiment.benchmark
    return once_s * (settings.rounds or 1) if settings.duration_s is None else settings.duration_s + once_s


def cell_s(experiment: Experiment, arms: Sequence[Arm], level: float, *, answer_s: float) -> float:
    """Seconds of one cell, all arms in turns, at so many requests at once or, of a search by rate, a second: what the client does
    (`benchmark.cell_size`). Requests above a batch wait for it, so their answers take longer."""
    settings = experiment.benchmark
    by_rate = bool(settings.load and settings.load.search_rate)
    mixed = settings.mixed or settings.load is not None
    counted = set_size(
        requests=settings.requests if settings.load is None else cell_requests(settings.requests),
        classes=len(experiment.classes) if mixed else 1,
        starts=settings.starts,
        at_once=None if by_rate else round(level),
    )
    in_flight, found = level * answer_s if by_rate else round(level), 0.0
    for arm in arms:
        own_s = answer_s * max(1.0, in_flight / arm.serving.max_num_seqs)
        found += block_s(answer_s=own_s, counted=counted, in_flight=max(in_flight, 1.0))
    found *= sets_in_all(settings.starts)
    return found if settings.cell_minutes is None else min(found, settings.cell_minutes * 60)


def _replayed_s(experiment: Experiment, arms: Sequence[Arm], answer_s: float) -> float:
    """One pass of recorded arrivals, which may all wait for the batch, since nothing else bounds how many are in flight; the turns
    of a conversation cannot be asked at once."""
    settings, talks = experiment.benchmark, defaultdict[str, float](float)
    for one in experiment.prompts:
        talks[one.conversation] += answer_s + one.think_s
    turns_s = max((took_s for talk, took_s in talks.items() if talk), default=0.0)
    batches = [arm.serving.max_num_seqs for arm in arms]
    listed = settings.concurrency or (settings.requests,)
    turns = [sum(-(-settings.requests // min(level, batch)) for level in listed) for batch in batches]
    once_s = float(sum(int(answers * answer_s) for answers in turns))
    return once_s + int(len(arms) * len(listed) * (replay_s(experiment) + turns_s))


def replay_s(experiment: Experiment) -> float:
    """When the last prompt of a replay arrives."""
    return max((prompt.at_s or 0.0 for prompt in experiment.prompts), default=0.0)


def quality_tokens(arm: Arm) -> int:
    """The longest answer of an arm to a question of `lm_eval`."""
    return min(QUALITY_TOKENS, arm.serving.max_model_len // 2)


def quality_s(experiment: Experiment, *, token_s: float) -> float:
    """Seconds of the questions of `lm_eval`, which are asked of each arm once, one arm after the other, where every answer is as
    long as it may be."""
    asked = experiment.benchmark.lm_eval.limit if experiment.benchmark.lm_eval else 0
    turns = ((-(-asked // arm.serving.max_num_seqs), quality_tokens(arm)) for arm in experiment.served_arms)
    return sum(answers * tokens * token_s for answers, tokens in turns)


def budget_text(experiment: Experiment) -> str:
    """How long the arms of a round are loaded, in words."""
    settings, load = experiment.benchmark, experiment.benchmark.load
    starts = f", {count(settings.starts, 'start')} of the servers" if settings.starts > 1 else ""
    if load is not None:
        minutes, usd = load.budget.minutes, load.budget.usd
        limits = f", {minutes:g} minutes of loading" if minutes else ""
        limits += f", ${usd:g}" if usd else ""
        return f"a search of at most {count(load.budget.cells, 'cell')}{limits}, then its first cell once more{starts}"
    classes = 1 if replayed(experiment.prompts) else len(experiment.classes)
    requests = f"at least {settings.requests * classes + settings.warmup} requests a level"
    if settings.duration:
        return f"{settings.duration} of loading and the rest of a pass of {requests}"
    return requests + (f", {count(settings.rounds, 'time')}" if settings.rounds else "") + starts


def objective_text(experiment: Experiment) -> str:
    """How many prompts the objective needs, and how many there are; empty without one."""
    if not (limits := experiment.benchmark.limits):
        return ""
    return f"objective {need(limits, effective_prompts(experiment.benchmark, experiment.prompts))}"


def _compiling(experiment: Experiment, missing: int) -> RunPart:
    """The longest of the arms decides about each turn: which of them are missing is not known here."""
    at_once, arms = compilations_at_once(experiment), experiment.served_arms
    known = [span[1] for arm in arms if (span := cold_start_s(arm))]
    likely = [one for arm in arms if (one := cold_start_like(arm))]
    of = f"for {min(missing, at_once)} artifacts at once, {missing} in all"
    turns = -(-missing // at_once)
    if arms and len(known) == len(arms):
        why = f"quoted: a start of up to {max(known):.0f} s without a compile cache, {of}"
        return RunPart("compile", max(known) / 3600 * turns, why)
    if arms and len(likely) == len(arms):
        longest, model = max(likely)
        twice = "; a drafting arm twice" if any(arm.speculation for arm in arms) else ""
        why = (
            f"assumed: as the published start of {model} without a compile cache{twice}, {longest:.0f} s {of}"
        )
        return RunPart("compile", longest / 3600 * turns, why)
    why = f"assumed: {COMPILE_H:g} h {of}; no time is published" + (" for every arm" if known else "")
    return RunPart("compile", max(COMPILE_H, *(longest / 3600 for longest in known), 0.0) * turns, why)


def _parts(experiment: Experiment, to_compile: int | None) -> tuple[RunPart, ...]:
    settings, standing, arms = experiment.benchmark, rounds(experiment), experiment.served_arms
    missing = len(arms) if to_compile is None else to_compile
    # A speculating arm is taken for no faster than plain decoding, so this is the most.
    answer_s, token = settings.max_tokens * PLAIN_TPOT_S, f"{PLAIN_TPOT_S * 1000:.0f} ms (quoted)"
    warm_s = settings.starts * max(1, -(-settings.warmup // (settings.most_at_once or 4))) * answer_s
    seconds = sum(loading_s(experiment, group, answer_s=answer_s) + len(group) * warm_s for group in standing)
    in_rounds = f" in {len(standing)} rounds, in each" if len(standing) > 1 else ","
    loading = "start of a round of arms" if settings.starts > 1 else "round of arms"
    needed = objective_text(experiment)
    loaded = (
        f"{count(sum(map(len, standing)), 'arm')}{in_rounds} {budget_text(experiment)}, at most "
        f"{count(settings.max_tokens, 'token')} of {token}{f'; {needed}' if needed else ''}"
    )
    parts = [
        RunPart("nodes start", NODE_START_H, "assumed: start, join, image pull"),
        RunPart("verify", VERIFY_H, "assumed: one short Job"),
        *([_compiling(experiment, missing)] if missing else []),
        RunPart("load", LOAD_H * len(standing) * settings.starts, f"assumed: {LOAD_H:g} h a {loading}"),
        RunPart("benchmark", seconds / 3600, loaded),
    ]
    if settings.lm_eval:
        asked = (
            f"{count(settings.lm_eval.limit, 'question')} to each of {count(len(arms), 'arm')} in turn, at most "
            f"{max(map(quality_tokens, arms))} tokens of {token}"
        )
        parts.append(RunPart("quality", quality_s(experiment, token_s=PLAIN_TPOT_S) / 3600, asked))
    return tuple(parts)
