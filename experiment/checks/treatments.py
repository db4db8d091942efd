"""Arms and their treatment: modes, windows, target and draft, and that there is something to compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from core.findings import Finding
from core.words import count
from experiment.catalogue.engine_keys import (
    DECIDED,
    FUSED_QKV,
    LARGEST_NUMERICAL_ERROR,
    known_keys,
    native_value,
    nxdi_value,
    smallest_bucket,
)
from experiment.catalogue.models import HEADS, MODELS, Head, Model
from experiment.catalogue.runtimes import MODES, NO_ASYNC_SCHEDULING, RUNTIMES, Mode, Runtime
from experiment.sweeps import ExpandedFile, SingleArm, Treatment

LARGEST_WINDOW = 32


@dataclass(frozen=True)
class Treated:
    """An arm that speculates; what the catalogue does not know is `None`, which is another rule's problem."""

    arm: SingleArm
    treatment: Treatment
    runtime: Runtime | None
    mode: Mode | None
    """What its runtime says to its mode."""
    target: Model | None
    draft: Model | None

    @property
    def at(self) -> str:
        """Where its `speculation` is."""
        return f"{self.arm.at}.speculation"

    @property
    def able(self) -> Mode | None:
        """Its mode, where its runtime can do that for its target."""
        reachable = self.mode and self.target and self.target.architecture in self.mode.architectures
        return self.mode if reachable else None

    @property
    def head(self) -> Head | None:
        """The head of the catalogue that it drafts with."""
        return HEADS.get(self.treatment.draft.model)

    @property
    def paired(self) -> bool:
        """Whether its draft is described as far as its mode needs; a known head without its target is another rule's problem."""
        draft = self.treatment.draft
        return self.head is None or (draft.head_for, draft.like, draft.config) != (None, None, None)


def treated(file: ExpandedFile, *arms: SingleArm) -> Iterator[Treated]:
    """Every arm that speculates; of these arms, where some are given."""
    for arm in arms or file.arms:
        if (treatment := arm.speculation) is not None:
            runtime = RUNTIMES.get(arm.runtime)
            mode = runtime.modes.get(treatment.mode) if runtime else None
            target, draft = file.described(file.target), file.described(treatment.draft)
            yield Treated(arm, treatment, runtime, mode, target, draft)


def known_runtimes(file: ExpandedFile) -> dict[str, Runtime]:
    """The runtimes in use that the catalogue knows, each once, by the first path that names it."""
    found: dict[str, Runtime] = {}
    for arm in file.arms:
        runtime = RUNTIMES.get(arm.runtime)
        if runtime is not None and runtime not in found.values():
            found[arm.runtime_at] = runtime
    return found


def fitting_draft(_: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """A draft that is a model of its own proposes token ids, which must be the target's, and must cost less."""
    target, draft, path = one.target, one.draft, f"{one.arm.draft_at}.model"
    if target is None or draft is None or draft.head_for is not None:
        return  # a head has its target's tokenizer by construction
    family = [model for model in MODELS.values() if model.tokenizer == target.tokenizer]
    smaller = ", ".join(model.name for model in family if model.parameters < target.parameters)
    remedy = f"use a smaller model of the same family: {smaller}"
    remedy = remedy if smaller else "the catalogue has no such model"
    if (draft.tokenizer, draft.vocabulary) != (target.tokenizer, target.vocabulary):
        why = (
            f"its tokenizer ({draft.tokenizer}, vocabulary {draft.vocabulary}) differs from the target's "
            f"({target.tokenizer}, {target.vocabulary})"
        )
        yield Finding(path, draft.name, why, remedy)
    if draft.parameters >= target.parameters:
        size = f"{draft.parameters / 1e9:.1f} billion weights, the target {target.parameters / 1e9:.1f}"
        yield Finding(path, draft.name, f"the draft is not smaller than the target: it has {size}", remedy)


def head_or_model(file: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """Some modes need a head trained for this very target, the others a model of its own."""
    target, name, draft, path = file.target.model, one.treatment.mode, one.treatment.draft, one.arm.draft_at
    if (mode := one.able) is None or not one.paired:
        return
    if mode.head and draft.head_for is None:
        why = f"mode {name} needs a head that was trained for the target, and {draft.model} is a model of its own"
        remedy = f"name a head and write `head_for: {target}` beside it"
        yield Finding(f"{path}.model", draft.model, why, remedy)
    elif not mode.head and draft.head_for is not None:
        remedy = "remove `head_for`, or use the mode that the head was trained for"
        yield Finding(
            f"{path}.head_for", draft.head_for, f"mode {name} drafts with a model of its own", remedy
        )
    elif draft.head_for in file.models and draft.head_for not in (target, file.target.like):
        why = f"a head reads the hidden states of the model it was trained for, and the target is {target}"
        yield Finding(f"{path}.head_for", draft.head_for, why, f"use a head for {target}")


def comparable_arms(file: ExpandedFile) -> Iterator[Finding]:
    """A plain baseline first, then at least one arm that differs from it and from the others; every batch has the same."""
    sizes = [arm.max_num_seqs for arm in file.arms]
    arms = [arm for arm, size in zip(file.arms, sizes, strict=True) if size is sizes[0] or size == sizes[0]]
    if len(arms) < 2:
        why = f"a comparison needs two arms, there is {len(arms)}"
        yield Finding("arms", None, why, "add an arm with `speculation`")
    if file.arms and file.arms[0].speculation is not None:
        why = "the first arm is the baseline, which decodes plainly"
        yield Finding("arms[0].speculation", None, why, "put an arm without `speculation` first")
    meanings: dict[tuple[object, ...], SingleArm] = {}
    for arm in arms:
        engine = json.dumps(dict(arm.engine), sort_keys=True)
        twin = meanings.setdefault((arm.runtime, arm.speculation, engine, arm.scheduler), arm)
        if twin is not arm:
            why = f"is equal to {'the baseline' if twin is file.arms[0] else twin.name}"
            remedy = "give it a `speculation`, `runtime`, `engine` or `scheduler` of its own, or remove it"
            yield Finding(arm.at, arm.name, why, remedy)


def engine_keys(file: ExpandedFile, arm: SingleArm) -> Iterator[Finding]:
    """What an arm sets otherwise must exist in its runtime, and must not be decided elsewhere in the file."""
    if not arm.engine or (runtime := RUNTIMES.get(arm.runtime)) is None:
        return
    table, tokens = runtime.config_keys, file.serving.max_model_len
    known = known_keys(table)
    for key, value in arm.engine.items():
        where, asked = f"{arm.at}.engine.{key}", nxdi_value(key, value, tokens=tokens)
        if runtime.dialect == "native":
            asked = native_value(table, key, value, sequences=arm.max_num_seqs, tokens=tokens)
        if key in DECIDED and key in known:
            yield Finding(where, value, f"is decided by {DECIDED[key]}", "remove it here")
        elif key not in known:
            close = get_close_matches(key, known - DECIDED.keys(), 3)
            why = f"is not a key of the Neuron configuration of runtime {arm.runtime}"
            why = why if known else f"runtime {arm.runtime} has no Neuron configuration"
            yield Finding(where, value, why, f"did you mean: {', '.join(close)}" if close else "remove it")
        elif asked:
            yield Finding(where, value, f"is refused by runtime {arm.runtime}", f"write {asked}")


def keys_that_fail_later(file: ExpandedFile, arm: SingleArm) -> Iterator[Finding]:
    """What NxD Inference 0.6 and 0.7 take, compile for an hour and fail at: no parser of theirs refuses it.

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
            why = (
                f"NxD Inference {runtime.nxd_inference} does not fuse the weights of Qwen3, so loading ends with a KeyError "
                "after the whole compilation (models/qwen3/modeling_qwen3.py)"
            )
            yield Finding(f"{arm.at}.engine.{key}", arm.engine[key], why, "remove it")
    kernels = [key for key, on in arm.engine.items() if on is True and key.endswith("kernel_enabled")]
    tokens = file.serving.max_model_len
    if any(nxdi_value(key, value, tokens=tokens) for key, value in arm.engine.items()):
        return  # refused by another rule
    bucket = smallest_bucket(arm.engine, tokens)
    if kernels and bucket <= LARGEST_NUMERICAL_ERROR:
        why = (
            f"the smallest bucket has {bucket} tokens, and kernels with buckets of {LARGEST_NUMERICAL_ERROR:,} or less can fail "
            "with status 1003, Numerical Error (AWS's Llama 3.3 70B tutorial)"
        )
        remedy = "list larger context_encoding_buckets and token_generation_buckets, or use no kernel"
        yield Finding(f"{arm.at}.engine.{kernels[0]}", True, why, remedy)


def schedulers(_: ExpandedFile, arm: SingleArm) -> Iterator[Finding]:
    """Asynchronous scheduling can be turned off only where it is on."""
    runtime, name, why = RUNTIMES.get(arm.runtime), arm.speculation.mode if arm.speculation else "", ""
    if arm.scheduler is None or runtime is None:
        return
    mode = runtime.modes.get(name)
    if not runtime.schedules_ahead:
        why = f"runtime {arm.runtime} has no asynchronous scheduling that could be turned off"
    elif mode and any(text.startswith(NO_ASYNC_SCHEDULING) for text in mode.also_changes):
        why = f"the arm is synchronous already: runtime {arm.runtime} turns asynchronous scheduling off for mode {name}"
    elif not arm.engine.get("on_device_sampling_config", True):
        why = "the arm is synchronous already: it samples on the host"
    if why:
        yield Finding(f"{arm.at}.scheduler", arm.scheduler, why, "remove it")


def reachable_modes(_: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """The runtime must be able to speculate this way, for this model."""
    path, name, mode, runtime = f"{one.at}.mode", one.treatment.mode, one.mode, one.runtime
    if name not in MODES:
        yield Finding(path, name, "is not a mode of speculation", f"known: {', '.join(MODES)}")
    elif runtime is None or mode is None:
        return
    elif not mode.architectures:
        why = f"runtime {runtime.name} cannot do it: {mode.reason}"
        yield Finding(path, name, why, runtime.nearest)
    elif one.target and not one.able:
        because = f" ({mode.reason})" if mode.reason else ""
        why = f"runtime {runtime.name} has no code for it with {one.target.architecture}{because}"
        if one.target.architecture in runtime.plain_only:
            why = f"runtime {runtime.name} serves {one.target.architecture}, and drafting for it was not seen"
        choose = f"choose a target of: {', '.join(sorted(mode.architectures))}"
        yield Finding(path, name, why, f"{runtime.nearest}, or {choose}" if mode.reason else choose)


def one_at_a_time(file: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """NxD Inference runs unfused and Medusa speculation for a batch of one only; no server can be loaded with it. Each Medusa head
    drafts one token, so the window is the number of heads used."""
    if one.able is None or not one.able.batch_only:
        return
    name, k, have = one.treatment.mode, one.treatment.num_speculative_tokens, one.treatment.draft.head_layers
    if one.arm.max_num_seqs > 1:
        why, size = f"{name} speculation takes one request at a time", file.serving.max_num_seqs
        yield Finding("serving.max_num_seqs", size, why, "use 1 for the whole experiment")
    if name == "medusa" and k > have:
        why = f"each Medusa head drafts one token, and the draft declares {have}"
        remedy = f"use {have} or less, or say how many there are (`head_layers`)"
        yield Finding(one.arm.window_at, k, why, remedy)


def served_beside_jobs(file: ExpandedFile) -> Iterator[Finding]:
    """A batch Job is compared with nothing."""
    jobs = [one for one in treated(file) if one.able and one.able.batch_only]
    if jobs and len(file.arms) - len(jobs) < 2:
        why = "runs as a batch Job that answers no request, so there is nothing to compare with the baseline"
        remedy = "add an arm that serves, for instance with mode `fused`"
        yield Finding(f"{jobs[0].at}.mode", jobs[0].treatment.mode, why, remedy)


def draft_length(file: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """vLLM refuses a draft with a longer context than its target's."""
    length, limit = one.treatment.draft_max_model_len, file.serving.max_model_len
    if length > limit:
        why = f"is above the target's max_model_len {limit}, which vLLM refuses at start"
        yield Finding(f"{one.at}.draft_max_model_len", length, why, f"use {limit} or leave it out")


def window(file: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """The window (k) against the mode's least and the request's length."""
    k, path, most = one.treatment.num_speculative_tokens, one.arm.window_at, file.benchmark.max_tokens
    least = one.mode.min_speculative_tokens if one.mode else 1
    bonus = one.mode.bonus_token if one.mode else False
    if k < least:
        because = "at most k tokens come out of a step, one of them the target's own"
        because = "at least one token must be drafted" if bonus else because
        why = f"{one.treatment.mode} speculation needs {least} at least: {because}"
        yield Finding(path, k, why, f"use {least} or more; 7 is the published setting")
    if k > LARGEST_WINDOW:
        why = f"this release takes {LARGEST_WINDOW} at most: at 15 the published gain was already gone"
        yield Finding(path, k, why, "use 3 to 15")
    elif k + bonus > most:
        yields = f"at most {'k+1' if bonus else 'k'} tokens come out of a step"
        why = f"{yields}, and an answer has {most} at most (benchmark.max_tokens)"
        yield Finding(path, k, why, f"use {min(15, most - bonus)} or less")


def trained_window(file: ExpandedFile) -> Iterator[Finding]:
    """A head that was trained for one k has no other to try.

    Source: https://github.com/vllm-project/vllm-neuron, examples/vllm_neuron/models/llama3/dflash/README.md.
    """
    first: dict[str, Treated] = {}
    for one in treated(file):
        if one.able is None or not one.able.trained_window:
            continue
        known = first.setdefault(one.treatment.draft.model, one)
        k, other = one.treatment.num_speculative_tokens, known.treatment.num_speculative_tokens
        if k != other:
            why = (
                f"a {one.treatment.mode} head drafts the block that it was trained with, and {known.arm.name} drafts "
                f"{other} tokens with the same head"
            )
            remedy = "use one value: k is fixed by training (block length minus 1)"
            yield Finding(one.arm.window_at, k, why, remedy)


def known_heads(file: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """What the makers of a runtime say of a head: its target, its mode, its window, its vocabulary."""
    draft, mode, k = one.treatment.draft, one.treatment.mode, one.treatment.num_speculative_tokens
    known, target, runtime = one.head, one.target, one.runtime
    if known is None or one.able is None or not one.able.head or not one.paired:
        return
    source = f"({known.source}, {known.date})"
    fine_tune = file.target.like == known.target or file.target.config
    if mode != known.mode:
        why = f"{draft.model} is a head of mode {known.mode} {source}"
        yield Finding(f"{one.at}.mode", mode, why, f"use `{known.mode}`")
    elif draft.head_for != known.target and not (fine_tune and draft.head_for == file.target.model):
        why = f"{draft.model} was trained for {known.target} {source}"
        yield Finding(f"{one.arm.draft_at}.head_for", draft.head_for, why, "name that model")
    elif known.speculative_tokens not in (None, k):
        tokens = count(known.speculative_tokens, "token")
        why = f"{draft.model} drafts {tokens}, fixed by its training {source}"
        yield Finding(one.arm.window_at, k, why, f"use {known.speculative_tokens}")
    elif target and known.vocabulary not in (None, target.vocabulary) and runtime and runtime.nxd_inference:
        why = (
            f"its output layer knows {known.vocabulary} tokens, and NxD Inference takes EAGLE3 heads with the vocabulary and "
            f"hidden size of {known.target} only (SDK, trn3-gpt-oss-120b-tutorial)"
        )
        remedy = "use a head with the target's vocabulary, or runtime native-vllm-0.29"
        yield Finding(f"{one.arm.draft_at}.model", draft.model, why, remedy)


def what_a_mode_asks(file: ExpandedFile, one: Treated) -> Iterator[Finding]:
    """Degrees, layers and sampling without which a runtime refuses a mode, or rejects its drafts."""
    if (able := one.able) is None:
        return
    mode, layers, runtime = one.treatment.mode, one.treatment.draft.head_layers, one.arm.runtime
    degree = file.serving.degree_on(file.instance) if able.degrees and file.instance else None
    if degree and degree not in able.degrees and (one.head is None or one.head.mode == mode):
        degrees = " or ".join(map(str, sorted(able.degrees)))
        why = f"runtime {runtime} refuses mode {mode} at any degree but {degrees}"
        yield Finding("serving.tensor_parallel", degree, why, f"use {degrees}")
    if able.one_layer and layers > 1:
        why = f"a head of mode {mode} has one layer on runtime {runtime}"
        yield Finding(f"{one.arm.draft_at}.head_layers", layers, why, "use 1, or leave it out")
    if able.needs_device_sampling and not one.arm.engine.get("on_device_sampling_config", True):
        value = one.arm.engine["on_device_sampling_config"]
        why = f"mode {mode} samples on the device: its drafts are rejected there"
        yield Finding(f"{one.arm.at}.engine.on_device_sampling_config", value, why, "remove it")


RULES = (comparable_arms, served_beside_jobs, trained_window)
ARM_RULES = (engine_keys, keys_that_fail_later, schedulers)
"""For each arm."""
DRAFT_RULES = (
    *(fitting_draft, head_or_model, reachable_modes, one_at_a_time),
    *(draft_length, window, known_heads, what_a_mode_asks),
)
"""For each arm that speculates."""
