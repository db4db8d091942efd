"""What an experiment costs per hour, from dated prices, and how many hours a run takes. `purchase` has the price of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trnspec.benchmark.cell_size import SETS, SETS_REPEATED, block_s, set_size
from trnspec.core.words import count, listed
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.prices import BLOCK_RATES, PRICES, NodeRate, Price, spot_rates
from trnspec.experiment.catalogue.published import PLAIN_TPOT_S, TARGET
from trnspec.experiment.compilation import cold_start_like, cold_start_s, native_arms
from trnspec.experiment.model import WARMUP
from trnspec.experiment.placement import ASKED_AT_ONCE, compilations_at_once, first_rounds

SYSTEM_NODES = 2
"""One per zone, so that DNS outlives a node."""
SYSTEM_VOLUME_GIB = 150
"""Room for the two Neuron images that the arguments Job pulls (`cdk8s_charts/pods.py`), the other images, the files of the fetch Job and
the caches of the mounts. They fill less than 85 %, at which the kubelet begins to remove images."""
NEURON_VOLUME_GIB = 100
"""Disk of the operating system; images and pods are on local NVMe."""
BASTION_VOLUME_GIB = 8
BLOCK_END_H = 1.0
"""The last hour of a block, in which its node group is already at 0."""
NODE_START_H = 0.25
VERIFY_H = 0.05
LOAD_H = 0.25
LOAD_BUDGET_S = 1800
"""Time to read and load a compiled arm before Kubernetes restarts it. An assumption: no load time of this pair from S3 is published."""
COMPILE_H = 1.0
"""Used where no time is published: NxD Inference, and arms that draft."""
QUALITY_TOKENS = 512
"""Maximum length of an answer to a question of `lm_eval`."""
LIKELY_QUALITY_TOKENS = 200
"""Length of an answer to gsm8k with its reasoning, of GPT-4o and Claude 3.5 (https://arxiv.org/abs/2502.18600). None is published of the
models here."""


def idle(experiment: Experiment) -> tuple[Price, ...]:
    """Return what is billed to the experiment while no Trn2 node runs. Storage and traffic are not included, nor are dashboards
    beyond the three that are free in each account.

    Alarms are billed per metric. Each cell of an arm has four: its errors, its slowest tokens, and its errors again for two alarms about
    missing data. Six more are the run, the nodes and four counts of the switch-off.
    """
    cluster = experiment.cluster
    own_network = int(cluster.network.vpc is None)
    bastions = int(not cluster.admin_cidrs)
    cells = len(experiment.classes) * len(experiment.benchmark.concurrency)
    of_cells = len(experiment.arms) * cells * 4
    units = {
        "control plane": 1,
        "NAT gateway": own_network,
        "public IPv4": own_network,
        "system node": SYSTEM_NODES,
        "bastion": bastions,
        "gp3 GiB": SYSTEM_NODES * SYSTEM_VOLUME_GIB + bastions * BASTION_VOLUME_GIB,
        "KMS key": 3,  # buckets, notices, secrets
        "alarm metric": of_cells + 6,
        "composite alarm": 2,
        "Container Insights": 1,
        "control plane logs": 1,
        "flow logs": own_network,
    }
    return tuple(PRICES[name].of(number) for name, number in units.items() if number)


def running(experiment: Experiment) -> tuple[Price, ...]:
    """Return what is billed while the largest round of arms runs."""
    nodes = experiment.nodes
    volumes = PRICES["gp3 GiB"].of(nodes * NEURON_VOLUME_GIB)
    return (node_price(experiment).of(nodes), volumes, *idle(experiment))


def file_spot_rates(experiment: Experiment) -> list[NodeRate]:
    """Return the published spot rates of a Trn2 node in its zone; if there are none, those of the file's other zones."""
    cluster, here = experiment.cluster, spot_rates(experiment.instance.name)
    own = [rate for rate in here if rate.zone == cluster.trn2_zone]
    return own or [rate for rate in here if rate.zone in cluster.availability_zones]


def node_price(experiment: Experiment) -> Price:
    """Return the price of a Trn2 node with the purchase option of the file. Where no such price is published, the rate of a
    Capacity Block is used and a note says so."""
    name, region, kind = experiment.instance.name, experiment.cluster.region, experiment.cluster.capacity.kind
    if kind == "spot" and (rates := file_spot_rates(experiment)):
        rate = min(rates, key=lambda one: one.usd_per_hour)
        return _price(rate, f"{name}, spot, {rate.place}", note=f"it changes all the time: {_spread(rate)}")
    rate, bought = BLOCK_RATES[name], f"{name}, Capacity Block rate"
    if kind == "spot":
        zones = listed(experiment.cluster.availability_zones)
        note = (
            f"no spot price is published for {zones}; this is the rate of a Capacity Block in {rate.region}"
        )
    elif kind == "capacity-block":
        note = (
            ""
            if rate.region == region
            else f"no block is published for {region}; this is the rate of a Capacity Block in {rate.region}"
        )
    else:
        note = f"AWS publishes no on-demand price; this is the rate of a Capacity Block in {rate.region}"
    return _price(rate, f"{bought}, {rate.region}", note=note)


def _price(rate: NodeRate, item: str, *, note: str) -> Price:
    return Price(item=item, usd_per_hour=rate.usd_per_hour, as_of=rate.as_of, source=rate.source, note=note)


def _spread(rate: NodeRate) -> str:
    if rate.low_usd is None or rate.high_usd is None:
        return f"${rate.usd_per_hour:.2f} on {rate.as_of}"
    return f"${rate.low_usd:.2f} to ${rate.high_usd:.2f} in the 30 days before {rate.as_of}"


def arm_usd_per_hour(experiment: Experiment, arm: Arm) -> float:
    """Return an arm's share of the price of its Trn2 node, in proportion to its devices."""
    return node_price(experiment).usd_per_hour * arm.serving.devices / experiment.instance.devices


def per_hour(items: Iterable[Price]) -> float:
    """Return the dollars per hour of all items."""
    return sum(item.usd_per_hour * item.units for item in items)


@dataclass(frozen=True)
class RunPart:
    """One part of a run with Trn2 nodes up."""

    step: str
    hours: float
    assumption: str


def loading_s(experiment: Experiment, arms: Sequence[Arm], *, answer_s: float) -> float:
    """Return the seconds for which the arms of a round are loaded in turn, if each answer takes `answer_s`."""
    settings = experiment.benchmark
    found = [cell_s(experiment, arms, level, answer_s=answer_s) for level in settings.concurrency]
    cells = 1 if settings.mixed else len(experiment.classes)
    return cells * sum(found) + SETS_REPEATED / SETS * found[0]  # the first cell is measured once more


def cell_s(experiment: Experiment, arms: Sequence[Arm], level: int, *, answer_s: float) -> float:
    """Return the seconds of one cell, with all arms in turn, as the client computes them (`trnspec.benchmark.cell_size`). `level` is the
    number of concurrent requests. Requests above the batch wait for it."""
    settings, found = experiment.benchmark, 0.0
    counted = set_size(
        requests=settings.requests,
        classes=len(experiment.classes) if settings.mixed else 1,
        concurrency=level,
    )
    for arm in arms:
        own_s = answer_s * max(1.0, level / arm.serving.max_num_seqs)
        found += block_s(answer_s=own_s, counted=counted, in_flight=level)
    found *= SETS
    return found if settings.cell_minutes is None else min(found, settings.cell_minutes * 60)


def quality_tokens(arm: Arm) -> int:
    """Return the maximum tokens of an arm's answer to a question of `lm_eval`."""
    return min(QUALITY_TOKENS, arm.serving.max_model_len // 2)


def quality_s(experiment: Experiment, *, token_s: float, most: int = QUALITY_TOKENS) -> float:
    """Return the seconds of the questions of `lm_eval`, if every answer has `most` tokens or the maximum of its arm. All arms of a round
    are asked at the same time."""
    asked = experiment.benchmark.lm_eval or 0

    def slowest(arms: Sequence[Arm]) -> int:
        answers = [(-(-asked // arm.serving.max_num_seqs), min(most, quality_tokens(arm))) for arm in arms]
        return -(-len(arms) // ASKED_AT_ONCE) * max((turns * tokens for turns, tokens in answers), default=0)

    return token_s * sum(map(slowest, first_rounds(experiment)))


def _compiling(experiment: Experiment, missing: int, arms: Sequence[Arm]) -> RunPart:
    """Return the compile step. Each turn takes as long as the slowest of `arms`, because it is not known which are missing."""
    at_once = compilations_at_once(experiment)
    known = [span[1] for arm in arms if (span := cold_start_s(arm))]
    likely = [one for arm in arms if (one := cold_start_like(arm))]
    of = f"for {count(missing, 'artifact')}" + (f", {at_once} at once" if at_once < missing else "")
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
    why = (
        f"assumed: {COMPILE_H:g} h {of}; {'a published time is missing' if known else 'no time is published'}"
    )
    return RunPart("compile", max(COMPILE_H, *(longest / 3600 for longest in known), 0.0) * turns, why)


def compile_deadline_s(experiment: Experiment) -> int:
    """Return the seconds after which the compile Job of one artifact is given up: three times the prediction, an hour at least, and
    half an hour for the image, a copy to S3 and a second attempt. Three is an estimate."""
    return max(3600, int(3 * 3600 * _compiling(experiment, 1, experiment.arms).hours)) + 1800


def start_budget_s(experiment: Experiment) -> int:
    """Return the seconds that a server has to load; on the native plugin also to compile what it does not find, twice the
    prediction and half an hour at least. The same for all arms of an experiment."""
    native = any(arm.runtime.dialect == "native" for arm in experiment.arms)
    return LOAD_BUDGET_S + native * max(
        1800, int(2 * 3600 * _compiling(experiment, 1, experiment.arms).hours)
    )


def run_hours(experiment: Experiment, *, to_compile: int | None = None) -> float:
    """Return the predicted Trn2 hours of a run, from the first node to the last."""
    return sum(part.hours for part in run_parts(experiment, to_compile=to_compile))


def run_parts(experiment: Experiment, *, to_compile: int | None = None) -> tuple[RunPart, ...]:
    """Predict the parts of a run in which `to_compile` artifacts do not exist yet (default: those of all arms)."""
    arms, rounds = experiment.arms, len(experiment.rounds)
    missing = len(arms) if to_compile is None else to_compile
    parts = [
        RunPart("nodes start", NODE_START_H, "assumed: start, join, image pull"),
        RunPart("verify", VERIFY_H, "assumed: one short Job"),
    ]
    if missing > 1 and len(native := native_arms(experiment)) > 1:
        alone = _compiling(experiment, 1, native[:1])
        why = f"{native[0].name} before the other native arms; {LOAD_H:g} h to start it; {alone.assumption}"
        parts.append(RunPart("first", alone.hours + LOAD_H, why))
        missing -= 1
    if missing:
        parts.append(_compiling(experiment, missing, arms))
    parts.append(RunPart("load", LOAD_H * rounds, f"assumed: {LOAD_H:g} h a round of arms"))
    parts.append(_benchmark(experiment))
    return (*parts, _quality(experiment)) if experiment.benchmark.lm_eval else tuple(parts)


_TOKEN = f"{PLAIN_TPOT_S * 1000:.0f} ms (the slowest published step of {TARGET.rpartition('/')[2]})"


def _benchmark(experiment: Experiment) -> RunPart:
    """Return the load of all rounds. Drafting is assumed to be no faster than plain decoding, so this is the maximum."""
    settings, rounds = experiment.benchmark, experiment.rounds
    answer_s = settings.max_tokens * PLAIN_TPOT_S
    warm_s = max(1, -(-WARMUP // max(settings.concurrency))) * answer_s
    seconds = sum(loading_s(experiment, group, answer_s=answer_s) + len(group) * warm_s for group in rounds)
    in_rounds = f" in {len(rounds)} rounds, in each" if len(rounds) > 1 else ","
    why = (
        f"{count(sum(map(len, rounds)), 'arm')}{in_rounds} {settings.requests} requests or more of each class at each load, at most "
        f"{count(settings.max_tokens, 'token')} of {_TOKEN}"
    )
    return RunPart("benchmark", seconds / 3600, why)


def _quality(experiment: Experiment) -> RunPart:
    """Return the questions of `lm_eval`."""
    arms, likely, most = experiment.arms, LIKELY_QUALITY_TOKENS, QUALITY_TOKENS
    likely_h, most_h = (
        quality_s(experiment, token_s=PLAIN_TPOT_S, most=tokens) / 3600 for tokens in (likely, most)
    )
    why = (
        f"{count(experiment.benchmark.lm_eval or 0, 'question')} to each of {count(len(arms), 'arm')}, at the same time, at most "
        f"{max(map(quality_tokens, arms))} tokens of {_TOKEN}; likely {likely_h:.2f} h with {likely} tokens (quoted, of other "
        "models); 0 if the answers of an earlier run are kept"
    )
    return RunPart("quality", most_h, why)
