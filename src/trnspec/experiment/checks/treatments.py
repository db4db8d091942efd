"""Checks of arms and their treatment: modes, windows, target and draft, and that arms can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.catalogue.engine_keys import (
    DECIDED,
    FUSED_QKV,
    NUMERICAL_ERROR_MAX_TOKENS,
    known_keys,
    min_bucket_tokens,
    native_value,
    nxdi_value,
)
from trnspec.experiment.catalogue.models import HEADS, MODELS, Head, Model
from trnspec.experiment.catalogue.runtimes import MODES, NO_ASYNC_SCHEDULING, RUNTIMES, Mode, Runtime
from trnspec.experiment.refusals import refused
from trnspec.experiment.sweeps import ExpandedFile, SingleArm, Treatment

MAX_WINDOW = 32


@dataclass(frozen=True)
class Pairing:
    """An arm that speculates, with its target and its draft. Names that the catalogue does not have are `None`; another rule reports them."""

    arm: SingleArm
    treatment: Treatment
    runtime: Runtime | None
    mode: Mode | None
    """Its mode, as its runtime supports it."""
    target: Model | None
    draft: Model | None

    @property
    def at(self) -> str:
        """Path of its `speculation`."""
        return f"{self.arm.at}.speculation"

    @property
    def able(self) -> Mode | None:
        """Its mode, if its runtime supports it for its target."""
        reachable = self.mode and self.target and self.target.architecture in self.mode.architectures
        return self.mode if reachable else None

    @property
    def head(self) -> Head | None:
        """Its draft, if it is a head of the catalogue."""
        return HEADS.get(self.treatment.draft.model)

    @property
    def paired(self) -> bool:
        """Whether its draft is described sufficiently; another rule reports a known head without its target."""
        draft = self.treatment.draft
        return self.head is None or (draft.head_for, draft.like, draft.config) != (None, None, None)


def treated(file: ExpandedFile, *arms: SingleArm) -> Iterator[Pairing]:
    """Yield every arm that speculates, of all arms or of the given ones."""
    for arm in arms or file.arms:
        if (treatment := arm.speculation) is not None:
            runtime = RUNTIMES.get(arm.runtime)
            mode = runtime.modes.get(treatment.mode) if runtime else None
            target, draft = file.described(file.target), file.described(treatment.draft)
            yield Pairing(arm, treatment, runtime, mode, target, draft)


def known_runtimes(file: ExpandedFile) -> dict[str, Runtime]:
    """Return the used runtimes that the catalogue has, by the first path that names them."""
    found: dict[str, Runtime] = {}
    for arm in file.arms:
        runtime = RUNTIMES.get(arm.runtime)
        if runtime is not None and runtime not in found.values():
            found[arm.runtime_at] = runtime
    return found


def fitting_draft(_: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """A separate draft model must have the target's token ids, and must be smaller."""
    target, draft, path = pair.target, pair.draft, f"{pair.arm.draft_at}.model"
    if target is None or draft is None or draft.head_for is not None:
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


def head_or_model(file: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """Some modes need a head that was trained for the target, the others a separate model."""
    target, name, draft, path = (
        file.target.model,
        pair.treatment.mode,
        pair.treatment.draft,
        pair.arm.draft_at,
    )
    if (mode := pair.able) is None or not pair.paired:
        return
    if mode.head and draft.head_for is None:
        words = {"mode": name, "model": draft.model, "target": target}
        yield refused("draft no-head", draft.model, at=f"{path}.model", **words)
    elif not mode.head and draft.head_for is not None:
        yield refused("draft no-model", draft.head_for, at=f"{path}.head_for", mode=name)
    elif draft.head_for in file.models and draft.head_for not in (target, file.target.like):
        yield refused("draft head-of-another", draft.head_for, at=f"{path}.head_for", target=target)


def comparable_arms(file: ExpandedFile) -> Iterator[Finding]:
    """The first arm is a plain baseline, and at least one more arm is different; every batch has the same arms."""
    sizes = [arm.max_num_seqs for arm in file.arms]
    arms = [arm for arm, size in zip(file.arms, sizes, strict=True) if size is sizes[0] or size == sizes[0]]
    if len(arms) < 2:
        yield refused("arms too-few", None, number=len(arms))
    if file.arms and file.arms[0].speculation is not None:
        yield refused("arms[0].speculation baseline", None)
    meanings: dict[tuple[object, ...], SingleArm] = {}
    for arm in arms:
        engine = json.dumps(dict(arm.engine), sort_keys=True)
        twin = meanings.setdefault((arm.runtime, arm.speculation, engine, arm.scheduler), arm)
        if twin is not arm:
            name = "the baseline" if twin is file.arms[0] else twin.name
            yield refused("arm equal", arm.name, at=arm.at, twin=name)


def engine_keys(file: ExpandedFile, arm: SingleArm) -> Iterator[Finding]:
    """Keys of `engine` must exist in the arm's runtime, and must not be set elsewhere in the file."""
    if not arm.engine or (runtime := RUNTIMES.get(arm.runtime)) is None:
        return
    table, tokens = runtime.config_keys, file.serving.max_model_len
    known = known_keys(table)
    for key, value in arm.engine.items():
        where, asked = f"{arm.at}.engine.{key}", nxdi_value(key, value, tokens=tokens)
        if runtime.dialect == "native":
            asked = native_value(table, key, value, sequences=arm.max_num_seqs, tokens=tokens)
        if key in DECIDED and key in known:
            yield refused("engine decided", value, at=where, by=DECIDED[key])
        elif key not in known:
            close = get_close_matches(key, known - DECIDED.keys(), 3)
            remedy = f"did you mean: {', '.join(close)}" if close else "remove it"
            yield refused("engine unknown", value, at=where, runtime=arm.runtime, remedy=remedy)
        elif asked:
            yield refused("engine refused", value, at=where, runtime=arm.runtime, asked=asked)


def keys_that_fail_later(file: ExpandedFile, arm: SingleArm) -> Iterator[Finding]:
    """Refuse keys that NxD Inference 0.6 and 0.7 accept and fail with after an hour of compilation.

    Sources: https://github.com/aws-neuron/neuronx-distributed-inference at v0.6.10598 and v0.7.14366, where
    models/qwen3/modeling_qwen3.py does not call `convert_state_dict_to_fused_qkv` (it does from SDK 2.29 on), so that
    modules/attention/gqa.py finds no `Wqkv.weight`; AWS's Llama 3.3 70B tutorial for the kernels. It names no version; on SDK 2.29 a bucket of 256 ran with a fused attention kernel
    (row P11k-short of published.yaml), so newer ones are not refused.
    """
    target, runtime = file.described(file.target), RUNTIMES.get(arm.runtime)
    if not arm.engine or runtime is None or not runtime.nxd_inference.startswith(("0.6.", "0.7.")):
        return
    for key in FUSED_QKV:
        if arm.engine.get(key) and target and target.architecture == "Qwen3ForCausalLM":
            yield refused("engine fused-qkv", arm.engine[key], at=f"{arm.at}.engine.{key}", runtime=runtime)
    kernels = [key for key, on in arm.engine.items() if on is True and key.endswith("kernel_enabled")]
    tokens = file.serving.max_model_len
    if any(nxdi_value(key, value, tokens=tokens) for key, value in arm.engine.items()):
        return  # refused by another rule
    bucket, maximum = min_bucket_tokens(arm.engine, tokens), NUMERICAL_ERROR_MAX_TOKENS
    if kernels and bucket <= maximum:
        where = f"{arm.at}.engine.{kernels[0]}"
        yield refused("engine small-bucket", True, at=where, bucket=bucket, maximum=maximum)


def schedulers(_: ExpandedFile, arm: SingleArm) -> Iterator[Finding]:
    """Asynchronous scheduling can be turned off only if it is on."""
    runtime, mode = RUNTIMES.get(arm.runtime), arm.speculation.mode if arm.speculation else ""
    if arm.scheduler is None or runtime is None:
        return
    known, name = runtime.modes.get(mode), ""
    if not runtime.schedules_ahead:
        name = "scheduler never"
    elif known and any(text.startswith(NO_ASYNC_SCHEDULING) for text in known.also_changes):
        name = "scheduler by-mode"
    elif not arm.engine.get("on_device_sampling_config", True):
        name = "scheduler on-host"
    if name:
        yield refused(name, arm.scheduler, at=f"{arm.at}.scheduler", runtime=arm.runtime, mode=mode)


def reachable_modes(_: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """The runtime must support the mode for this model."""
    path, name, mode, runtime = f"{pair.at}.mode", pair.treatment.mode, pair.mode, pair.runtime
    if name not in MODES:
        yield refused("mode unknown", name, at=path, modes=", ".join(MODES))
    elif runtime is None or mode is None:
        return
    elif not mode.architectures:
        yield refused("mode impossible", name, at=path, runtime=runtime, mode=mode)
    elif pair.target and not pair.able:
        choose = f"choose a target of: {', '.join(sorted(mode.architectures))}"
        words = {
            "because": f" ({mode.reason})" if mode.reason else "",
            "remedy": f"{runtime.nearest}, or {choose}" if mode.reason else choose,
        }
        kind = "plain-only" if pair.target.architecture in runtime.plain_only else "no-code"
        yield refused(f"mode {kind}", name, at=path, runtime=runtime, target=pair.target, **words)


def draft_length(file: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """vLLM refuses a draft with a longer context than its target's."""
    length, limit = pair.treatment.draft_max_model_len, file.serving.max_model_len
    if length > limit:
        yield refused("draft too-long", length, at=f"{pair.at}.draft_max_model_len", limit=limit)


def window(file: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """The window (k) has the mode's minimum, and is limited by the length of an answer."""
    k, path, answer = (
        pair.treatment.num_speculative_tokens,
        pair.arm.window_at,
        file.benchmark.max_tokens,
    )
    minimum = pair.mode.min_speculative_tokens if pair.mode else 1
    bonus = pair.mode.bonus_token if pair.mode else False
    if k < minimum:
        because = "at most k tokens come out of a step, one of them the target's own"
        because = "at least one token must be drafted" if bonus else because
        words = {"mode": pair.treatment.mode, "because": because}
        yield refused("window too-small", k, at=path, minimum=minimum, **words)
    if k > MAX_WINDOW:
        yield refused("window too-large", k, at=path, maximum=MAX_WINDOW)
    elif k + bonus > answer:
        yields, maximum = "k+1" if bonus else "k", min(15, answer - bonus)
        yield refused("window above-answer", k, at=path, yields=yields, answer=answer, maximum=maximum)


def trained_window(file: ExpandedFile) -> Iterator[Finding]:
    """A head that was trained for one k cannot use another.

    Source: https://github.com/vllm-project/vllm-neuron, examples/vllm_neuron/models/llama3/dflash/README.md.
    """
    first: dict[str, Pairing] = {}
    for pair in treated(file):
        if pair.able is None or not pair.able.trained_window:
            continue
        known = first.setdefault(pair.treatment.draft.model, pair)
        k, other = pair.treatment.num_speculative_tokens, known.treatment.num_speculative_tokens
        if k != other:
            words = {"mode": pair.treatment.mode, "other": known.arm.name}
            yield refused("window trained-once", k, at=pair.arm.window_at, k=other, **words)


def known_heads(file: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """A known head must be used with the target, mode, window and vocabulary that its makers state."""
    draft, mode, k = pair.treatment.draft, pair.treatment.mode, pair.treatment.num_speculative_tokens
    head, target, runtime = pair.head, pair.target, pair.runtime
    if head is None or pair.able is None or not pair.able.head or not pair.paired:
        return
    fine_tune = file.target.like == head.target or file.target.config
    if mode != head.mode:
        yield refused("head another-mode", mode, at=f"{pair.at}.mode", head=head)
    elif draft.head_for != head.target and not (fine_tune and draft.head_for == file.target.model):
        yield refused("head another-target", draft.head_for, at=f"{pair.arm.draft_at}.head_for", head=head)
    elif head.speculative_tokens is not None and head.speculative_tokens != k:
        tokens = count(head.speculative_tokens, "token")
        yield refused("head trained-window", k, at=pair.arm.window_at, head=head, tokens=tokens)
    elif target and head.vocabulary not in (None, target.vocabulary) and runtime and runtime.nxd_inference:
        yield refused("head another-vocabulary", draft.model, at=f"{pair.arm.draft_at}.model", head=head)


def what_a_mode_asks(file: ExpandedFile, pair: Pairing) -> Iterator[Finding]:
    """A mode may require degrees of tensor parallelism, a number of layers, or sampling on the device."""
    if (able := pair.able) is None:
        return
    layers, words = (
        pair.treatment.draft.head_layers,
        {"runtime": pair.arm.runtime, "mode": pair.treatment.mode},
    )
    degree = file.serving.degree_on(file.instance) if able.degrees and file.instance else None
    if degree and degree not in able.degrees and (pair.head is None or pair.head.mode == pair.treatment.mode):
        degrees = " or ".join(map(str, sorted(able.degrees)))
        yield refused("serving.tensor_parallel degrees", degree, degrees=degrees, **words)
    if able.one_layer and layers > 1:
        yield refused("head layers", layers, at=f"{pair.arm.draft_at}.head_layers", **words)
    key = "on_device_sampling_config"
    if able.needs_device_sampling and not pair.arm.engine.get(key, True):
        yield refused("engine sampling", pair.arm.engine[key], at=f"{pair.arm.at}.engine.{key}", **words)


RULES = (comparable_arms, trained_window)
ARM_RULES = (engine_keys, keys_that_fail_later, schedulers)
"""For each arm."""
DRAFT_RULES = (
    *(fitting_draft, head_or_model, reachable_modes),
    *(draft_length, window, known_heads, what_a_mode_asks),
)
"""For each arm that speculates."""
