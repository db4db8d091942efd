"""Checks of arms: their names, models and engines, modes and windows, and that they can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.arms import Arm, Experiment, Speculation, Weights, logical_cores
from trnspec.experiment.catalogue.engine_keys import (
    DECIDED,
    FUSED_QKV,
    NUMERICAL_ERROR_MAX_TOKENS,
    WINDOW_SCHEDULE,
    known_keys,
    min_bucket_tokens,
    native_value,
    nxdi_value,
)
from trnspec.experiment.catalogue.instances import GROUP_SIZES
from trnspec.experiment.catalogue.models import HEADS, MODELS
from trnspec.experiment.catalogue.runtimes import HEAD_MODES, NO_ASYNC_SCHEDULING, Mode
from trnspec.experiment.naming import BENCHMARK_NAME, LMEVAL_NAME, PROMOTED_SUFFIX
from trnspec.experiment.refusals import refused

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035 label, as Kubernetes requires for the name of a Service."""
REPOSITORY = re.compile(r"[A-Za-z0-9][-.\w]{0,95}/[A-Za-z0-9][-.\w]{0,95}", re.ASCII)
MAX_EXPERIMENT_NAME = 25
"""Names that are made from it must be valid in AWS and Kubernetes; in some regions the limit is lower, see `max_name_length`."""
MAX_ARM_NAME = 54
"""Names of Jobs and containers add at most nine characters to an arm's name, and may have 63."""
MAX_WINDOW = 32


def _models(experiment: Experiment) -> dict[str, Weights]:
    """Return the target and every draft by their paths in the file."""
    drafts = {arm.paths.draft: arm.speculation.draft for arm in experiment.arms if arm.speculation}
    return {"target": experiment.baseline.target, **drafts}


def repositories(experiment: Experiment) -> Iterator[Finding]:
    """A model outside the catalogue needs a name under which it can be fetched and served. A bucket has no
    commits; its contents are recorded when the model is fetched."""
    for path, weights in _models(experiment).items():
        name = weights.model.name
        if name not in MODELS and not REPOSITORY.fullmatch(name):
            yield refused("model no-repository", name, at=f"{path}.model")
        if weights.address is not None and weights.revision is not None:
            yield refused("model commit-of-a-bucket", weights.revision, at=f"{path}.revision")


def dns_labels(experiment: Experiment) -> Iterator[Finding]:
    """Names become Kubernetes names."""
    arms = [(f"{arm.paths.at}.name", arm.name) for arm in experiment.arms]
    for path, name in [("name", experiment.name), *arms]:
        if not DNS_LABEL.fullmatch(name):
            yield refused("name no-label", name, at=path)
    for path, name in arms:
        if DNS_LABEL.fullmatch(name) and len(name) > MAX_ARM_NAME:
            yield refused("arm too-long", name, at=path, length=len(name), maximum=MAX_ARM_NAME)


def own_namespace(experiment: Experiment) -> Iterator[Finding]:
    """The name becomes a namespace and the prefix of bucket names, which have a maximum length; some names are reserved."""
    name, region = experiment.name, experiment.cluster.region
    if name == "default" or name.startswith(("kube-", "xn--", "sthree-", "amzn-s3-demo-")):
        yield refused("name reserved", name)
    if len(name) > (maximum := max_name_length(region)):
        yield refused("name too-long", name, length=len(name), maximum=maximum, region=region)


def max_name_length(region: str) -> int:
    """Return the maximum length of an experiment's name in a region: a bucket's name has it with the longest purpose, the
    account's 12 digits and the region, in 63 characters."""
    return min(MAX_EXPERIMENT_NAME, 63 - len(f"-checkpoints-{0:012}-{region}"))


def distinct_arms(experiment: Experiment) -> Iterator[Finding]:
    """Two arms with one name would be one service."""
    seen: dict[str, Arm] = {}
    for arm in experiment.arms:
        if seen.setdefault(arm.name, arm) is not arm:
            yield refused("arm twice", arm.name, at=f"{arm.paths.at}.name")
    reserved = {
        BENCHMARK_NAME: "benchmark",
        LMEVAL_NAME: "quality check",
        experiment.name + PROMOTED_SUFFIX: "promoted service",
    }
    for taken, what in reserved.items():
        if taken in seen:
            yield refused("arm reserved", taken, at=f"{seen[taken].paths.at}.name", what=what)


def tokens(experiment: Experiment) -> Iterator[Finding]:
    """Gated models of Hugging Face need a token."""
    tokenizer = experiment.baseline.target.model.tokenizer
    for path, weights in _models(experiment).items() if experiment.token_secret is None else ():
        # A draft with another tokenizer is refused by another rule.
        if weights.model.gated and weights.address is None and weights.model.tokenizer == tokenizer:
            yield refused("model gated", weights.model.name, at=f"{path}.model")
            return


def comparable_arms(experiment: Experiment) -> Iterator[Finding]:
    """The first arm is a plain baseline, and at least one more arm is different; every batch has the same arms."""
    arms = experiment.by_batch[0]
    if len(arms) < 2:
        yield refused("arms too-few", None, number=len(arms))
    if arms[0].speculation is not None:
        yield refused("arms[0].speculation baseline", None)
    meanings: dict[tuple[object, ...], Arm] = {}
    for arm in arms:
        engine = json.dumps(dict(arm.engine), sort_keys=True)
        twin = meanings.setdefault((arm.runtime.name, arm.speculation, engine, arm.scheduler), arm)
        if twin is not arm:
            name = "the baseline" if twin is arms[0] else twin.name
            yield refused("arm equal", arm.name, at=arm.paths.at, twin=name)


def trained_window(experiment: Experiment) -> Iterator[Finding]:
    """A head that was trained for one k cannot use another.

    Source: https://github.com/vllm-project/vllm-neuron, examples/vllm_neuron/models/llama3/dflash/README.md.
    """
    first: dict[str, Arm] = {}
    for arm in experiment.arms:
        if arm.speculation is None or not (mode := _reachable(arm)) or not mode.trained_window:
            continue
        known = first.setdefault(arm.speculation.draft.model.name, arm)
        k, other = arm.num_speculative_tokens, known.num_speculative_tokens
        if k != other:
            words = {"mode": arm.speculation.mode, "other": known.name}
            yield refused("window trained-once", k, at=arm.paths.window, k=other, **words)


def _reachable(arm: Arm) -> Mode | None:
    """Return the mode of an arm, if its runtime supports it for its target."""
    return arm.mode if arm.mode and arm.target.model.architecture in arm.mode.architectures else None


def engine_keys(_: Experiment, arm: Arm) -> Iterator[Finding]:
    """Keys of `engine` must exist in the arm's runtime, and must not be set elsewhere in the file."""
    if not arm.engine:
        return
    runtime, table, tokens = arm.runtime, arm.runtime.config_keys, arm.serving.max_model_len
    known = known_keys(table)
    for key, value in arm.engine.items():
        where, asked = f"{arm.paths.at}.engine.{key}", nxdi_value(key, value, tokens=tokens)
        if runtime.dialect == "native":
            asked = native_value(table, key, value, sequences=arm.serving.max_num_seqs, tokens=tokens)
        if key in DECIDED and key in known:
            yield refused("engine decided", value, at=where, by=DECIDED[key])
        elif key == WINDOW_SCHEDULE:
            yield refused("window schedule", value, at=where)
        elif key not in known:
            close = get_close_matches(key, known - DECIDED.keys(), 3)
            remedy = f"did you mean: {', '.join(close)}" if close else "remove it"
            yield refused("engine unknown", value, at=where, runtime=runtime.name, remedy=remedy)
        elif asked:
            yield refused("engine refused", value, at=where, runtime=runtime.name, asked=asked)


def keys_that_fail_later(_: Experiment, arm: Arm) -> Iterator[Finding]:
    """Refuse keys that NxD Inference 0.6 and 0.7 accept and fail with after an hour of compilation.

    Sources: https://github.com/aws-neuron/neuronx-distributed-inference at v0.6.10598 and v0.7.14366, where
    models/qwen3/modeling_qwen3.py does not call `convert_state_dict_to_fused_qkv` (it does from SDK 2.29 on), so that
    modules/attention/gqa.py finds no `Wqkv.weight`; AWS's Llama 3.3 70B tutorial for the kernels. It names no version; on SDK 2.29 a bucket of 256 ran with a fused attention kernel
    (row P11k-short of published.yaml), so newer ones are not refused.
    """
    target, runtime = arm.target.model, arm.runtime
    if not arm.engine or not runtime.nxd_inference.startswith(("0.6.", "0.7.")):
        return
    for key in FUSED_QKV:
        if arm.engine.get(key) and target.architecture == "Qwen3ForCausalLM":
            yield refused(
                "engine fused-qkv", arm.engine[key], at=f"{arm.paths.at}.engine.{key}", runtime=runtime
            )
    kernels = [key for key, on in arm.engine.items() if on is True and key.endswith("kernel_enabled")]
    tokens = arm.serving.max_model_len
    if any(nxdi_value(key, value, tokens=tokens) for key, value in arm.engine.items()):
        return  # refused by another rule
    bucket, maximum = min_bucket_tokens(arm.engine, tokens), NUMERICAL_ERROR_MAX_TOKENS
    if kernels and bucket <= maximum:
        where = f"{arm.paths.at}.engine.{kernels[0]}"
        yield refused("engine small-bucket", True, at=where, bucket=bucket, maximum=maximum)


def schedulers(_: Experiment, arm: Arm) -> Iterator[Finding]:
    """Asynchronous scheduling can be turned off only if it is on."""
    if arm.scheduler is None:
        return
    runtime, mode, name = arm.runtime, arm.mode, ""
    if not runtime.schedules_ahead:
        name = "scheduler never"
    elif mode and any(text.startswith(NO_ASYNC_SCHEDULING) for text in mode.also_changes):
        name = "scheduler by-mode"
    elif not arm.engine.get("on_device_sampling_config", True):
        name = "scheduler on-host"
    if name:
        words = {"runtime": runtime.name, "mode": arm.speculation and arm.speculation.mode}
        yield refused(name, arm.scheduler, at=f"{arm.paths.at}.scheduler", **words)


def fitting_draft(_: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """A separate draft model must have the target's token ids, and must be smaller."""
    target, draft, path = arm.target.model, speculation.draft.model, f"{arm.paths.draft}.model"
    if draft.head_for is not None:
        return  # a head has its target's tokenizer by construction
    family = [model for model in MODELS.values() if model.tokenizer == target.tokenizer]
    smaller = ", ".join(model.name for model in family if model.parameters < target.parameters)
    remedy = f"use a smaller model of the same family: {smaller}"
    remedy = remedy if smaller else "the catalogue has no such model"
    if (draft.tokenizer, draft.vocabulary) != (target.tokenizer, target.vocabulary):
        yield refused(
            "draft another-tokenizer", draft.name, at=path, draft=draft, target=target, remedy=remedy
        )
    if draft.parameters >= target.parameters:
        sizes = {"size": draft.parameters / 1e9, "of_target": target.parameters / 1e9}
        yield refused("draft too-large", draft.name, at=path, remedy=remedy, **sizes)


def reachable_modes(_: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """The runtime must support the mode for this model."""
    path, runtime, target = f"{arm.paths.at}.speculation.mode", arm.runtime, arm.target.model
    mode = runtime.modes[speculation.mode]
    if not mode.architectures:
        yield refused("mode impossible", speculation.mode, at=path, runtime=runtime, mode=mode)
    elif target.architecture not in mode.architectures:
        choose = f"choose a target of: {', '.join(sorted(mode.architectures))}"
        words = {
            "because": f" ({mode.reason})" if mode.reason else "",
            "remedy": f"{runtime.nearest}, or {choose}" if mode.reason else choose,
        }
        kind = "plain-only" if target.architecture in runtime.plain_only else "no-code"
        yield refused(f"mode {kind}", speculation.mode, at=path, runtime=runtime, target=target, **words)


def window(experiment: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """The window (k) has the mode's minimum, and is limited by the length of an answer."""
    k, path, answer = speculation.num_speculative_tokens, arm.paths.window, experiment.benchmark.max_tokens
    mode = arm.runtime.modes[speculation.mode]
    minimum, bonus = mode.min_speculative_tokens, mode.bonus_token
    if k < minimum:
        because = "at most k tokens come out of a step, one of them the target's own"
        because = "at least one token must be drafted" if bonus else because
        words = {"mode": speculation.mode, "because": because}
        yield refused("window too-small", k, at=path, minimum=minimum, **words)
    if k > MAX_WINDOW:
        yield refused("window too-large", k, at=path, maximum=MAX_WINDOW)
    elif k + bonus > answer:
        yields, maximum = "k+1" if bonus else "k", min(15, answer - bonus)
        yield refused("window above-answer", k, at=path, yields=yields, answer=answer, maximum=maximum)


def head_for_mode(_: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """Some modes need a head that was trained for the target."""
    draft = speculation.draft.model
    if speculation.mode in HEAD_MODES and draft.head_for is None:
        words = {"mode": speculation.mode, "target": arm.target.model.name}
        yield refused("draft no-head", draft.name, at=f"{arm.paths.draft}.model", **words)


def known_heads(_: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """A known head must be used with the target, mode, window and vocabulary that its makers state."""
    target, draft, mode = arm.target, speculation.draft.model, speculation.mode
    head, k, path = HEADS.get(draft.name), speculation.num_speculative_tokens, arm.paths.draft
    if head is None:
        return
    fine_tune = target.shape_of == head.target or target.shape_of not in (None, *MODELS)
    if mode != head.mode:
        yield refused("head another-mode", mode, at=f"{arm.paths.at}.speculation.mode", head=head)
    elif head.target != target.model.name and not fine_tune:
        yield refused("head another-target", draft.name, at=f"{path}.model", head=head, target=target.model)
    elif head.speculative_tokens is not None and head.speculative_tokens != k:
        tokens = count(head.speculative_tokens, "token")
        yield refused("head trained-window", k, at=arm.paths.window, head=head, tokens=tokens)


def head_sizes(_: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """A head must have the target's vocabulary. NxD Inference also needs it in the output layer, and the target's hidden size, as DFlash
    does; the native plugin pads an EAGLE3 head (vllm_neuron/vllm/spec_decode/eagle.py at 09006a44)."""
    target, draft, path = arm.target.model, speculation.draft.model, f"{arm.paths.draft}.model"
    nxdi = bool(arm.runtime.nxd_inference)
    if draft.head_for is None:
        return
    sizes = ["vocabulary"] + ["hidden"] * (nxdi or speculation.mode == "dflash")
    for name in sizes:
        own, theirs = getattr(draft, name), getattr(target, name)
        if own != theirs:
            words = {"what": name.replace("hidden", "hidden size"), "target": target}
            yield refused("head another-size", draft.name, at=path, own=own, theirs=theirs, **words)
    output = draft.output_vocabulary or draft.vocabulary
    if nxdi and draft.vocabulary == target.vocabulary != output:
        yield refused("head another-vocabulary", draft.name, at=path, draft=draft, target=target)


def what_a_mode_asks(_: Experiment, arm: Arm, speculation: Speculation) -> Iterator[Finding]:
    """A mode may require degrees of tensor parallelism, a number of layers, or sampling on the device."""
    mode, draft = arm.runtime.modes[speculation.mode], speculation.draft.model
    head, degree = HEADS.get(draft.name), arm.serving.tensor_parallel
    words: dict[str, Any] = {"runtime": arm.runtime.name, "mode": speculation.mode}
    if mode.degrees and degree not in mode.degrees and (head is None or head.mode == speculation.mode):
        degrees = " or ".join(map(str, sorted(mode.degrees)))
        sizes = [
            size for size in GROUP_SIZES if logical_cores(arm.serving, arm.instance, size) in mode.degrees
        ]
        words |= {"degree": degree, "degrees": degrees, "sizes": " or ".join(map(str, sizes))}
        yield refused("serving.devices degrees", arm.serving.devices, **words)
    if mode.one_layer and draft.head_for is not None and draft.layers > 1:
        yield refused("head layers", None, layers=draft.layers, at=f"{arm.paths.draft}.config", **words)
    key = "on_device_sampling_config"
    if mode.needs_device_sampling and not arm.engine.get(key, True):
        yield refused("engine sampling", arm.engine[key], at=f"{arm.paths.at}.engine.{key}", **words)


RULES = (repositories, dns_labels, distinct_arms, own_namespace, tokens, comparable_arms, trained_window)
ARM_RULES = (engine_keys, keys_that_fail_later, schedulers)
"""For each arm."""


def draft_rules(arm: Arm) -> Iterator[Callable[[Experiment, Arm, Any], Iterator[Finding]]]:
    """Yield the rules for the arm's draft. What a mode asks matters only where the runtime has it for the target."""
    if arm.speculation is None:
        return
    yield fitting_draft
    if _reachable(arm):
        yield head_for_mode
    yield from (reachable_modes, window)
    if _reachable(arm):
        yield from (known_heads, head_sizes, what_a_mode_asks)
