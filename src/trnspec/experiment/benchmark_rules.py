"""Checks of the benchmark: its requests must fit and be answered, and published figures must be comparable with what it measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.engine_keys import CONTEXT_BUCKETS, nxdi_value
from trnspec.experiment.catalogue.published import DRAFTED, PLAIN, Drafted, Plain
from trnspec.experiment.model import ExpectedFigure
from trnspec.experiment.prompts import Prompt
from trnspec.experiment.refusals import refused

NONCE_TOKENS = 16
"""Tokens for the nonce that the benchmark puts before each prompt to prevent prefix caching."""
PLAN_BYTES = 900_000
PLAN_BYTES_PER_PROMPT = 200
"""Approximate bytes of keys, id, class and quoting for each prompt."""
CHAT_TEMPLATE_TOKENS, FURTHER_MESSAGE_TOKENS = 32, 8
"""Tokens that a chat template adds: for one message Llama 3's date and role markers, 46 tokens with the nonce; then the role
markers of each further message."""


def lengths(experiment: Experiment) -> Iterator[Finding]:
    """A prompt and its answer must fit `max_model_len`; the bound of a prompt is its stated `tokens`, else its UTF-8 bytes. One more step must
    fit if an arm drafts on a runtime whose server ends at a step that does not.

    If most prompts do not fit, or prompts of several classes, the refusal names the limit of the answers. Otherwise it names the longest
    prompt of the class.
    """
    prompts, limit = experiment.prompts, experiment.baseline.serving.max_model_len
    answer, drafting = experiment.benchmark.max_tokens, max(experiment.arms, key=lambda arm: arm.step_room)
    step, last = drafting.step_room, ""
    if step:
        last = f" + {step} for the last step of {drafting.name}, which fails beyond the context"
    needed = {
        prompt: prompt.max_prompt_tokens + _room(prompt) + (prompt.max_tokens or answer) + step
        for prompt in prompts
    }
    too_long = [prompt for prompt in prompts if needed[prompt] > limit]
    common = [prompt for prompt in too_long if prompt.max_tokens is None]
    if len({prompt.class_name for prompt in common}) > 1 or 2 * len(common) > len(prompts):
        longest = max(common, key=needed.__getitem__)
        maximum = answer - (needed[longest] - limit)
        yield refused(
            "benchmark.max_tokens too-long",
            answer,
            number=len(common),
            prompts=count(len(prompts), "prompt"),
            first=f"use {maximum} or less" if maximum > 0 else "shorten the prompts",
            longest=longest,
            **_length(longest) | {"limit": limit, "last": last},
        )
        too_long = [prompt for prompt in too_long if prompt not in common]
    for name in dict.fromkeys(prompt.class_name for prompt in too_long):
        group = [prompt for prompt in too_long if prompt.class_name == name]
        prompt = max(group, key=needed.__getitem__)
        yield refused(
            "prompt too-long",
            prompt.id,
            at="prompts.file" if experiment.prompt_format else f"prompts.classes.{name}",
            answer=prompt.max_tokens or answer,
            needed=needed[prompt],
            others=f" ({len(group) - 1} more of this class do not fit either)" if len(group) > 1 else "",
            **_length(prompt) | {"limit": limit, "last": last},
        )


def _length(prompt: Prompt) -> dict[str, Any]:
    """Return the maximum tokens of a prompt with its source, the added tokens, and how to count if the tokens were not counted."""
    how, counted = "as its line states", ""
    if prompt.tokens is None:
        how = "its UTF-8 bytes"
        counted = "count its tokens and write them into its line (`tokens`, docs/models.md), "
    return {"bound": f"{prompt.max_prompt_tokens} tokens ({how})", "room": _room(prompt), "counted": counted}


def _room(prompt: Prompt) -> int:
    further = FURTHER_MESSAGE_TOKENS * (len(prompt.messages or ()) - 1)
    return NONCE_TOKENS + (CHAT_TEMPLATE_TOKENS + further if prompt.messages else 0)


def context_buckets(experiment: Experiment) -> Iterator[Finding]:
    """NxD Inference fails for a prompt above the last bucket of an arm, and the server ends (`get_target_bucket`)."""
    listing = [arm for arm in experiment.arms if arm.engine.get(CONTEXT_BUCKETS)]
    if not listing or not experiment.prompts:
        return
    longest = max(experiment.prompts, key=lambda prompt: prompt.max_prompt_tokens + _room(prompt))
    needed = longest.max_prompt_tokens + _room(longest)
    for arm in listing:
        listed, tokens = arm.engine[CONTEXT_BUCKETS], arm.serving.max_model_len
        if nxdi_value(CONTEXT_BUCKETS, listed, tokens=tokens):
            continue  # refused by another rule
        if needed > max(listed):
            where, words = f"{arm.paths.at}.engine.{CONTEXT_BUCKETS}", _length(longest) | {"needed": needed}
            yield refused("prompt above-bucket", listed, at=where, prompt=longest, **words)


def plan_size(experiment: Experiment) -> Iterator[Finding]:
    """The benchmark's plan is mounted from a ConfigMap, which holds 1 MiB."""
    prompts = experiment.prompts
    size = sum(prompt.utf8_bytes + PLAN_BYTES_PER_PROMPT for prompt in prompts)
    if size > PLAN_BYTES:
        number, fit = count(len(prompts), "prompt"), len(prompts) * PLAN_BYTES // size
        yield refused("prompts too-large", None, prompts=number, size=size, maximum=PLAN_BYTES, fit=fit)


def sampling(experiment: Experiment) -> Iterator[Finding]:
    """If speculation is greedy only, one arm would use a temperature and the other would ignore it."""
    temperature = experiment.benchmark.temperature
    for arm in experiment.arms:
        if arm.speculation and arm.runtime.greedy_speculation_only and temperature > 0:
            yield refused("benchmark.temperature greedy", temperature, runtime=arm.runtime)


def thinking(experiment: Experiment) -> Iterator[Finding]:
    """Reasoning needs the chat template of a model that has the switch."""
    target = experiment.baseline.target.model
    if experiment.benchmark.thinking and experiment.benchmark.endpoint != "chat":
        yield refused("benchmark.thinking no-chat", True)
    elif experiment.benchmark.thinking and not target.can_think:
        yield refused("benchmark.thinking no-switch", True, target=target)


def every_prompt_asked(experiment: Experiment) -> Iterator[Finding]:
    """A cell must be large enough for each prompt of its class; the same prompts are asked of every arm."""
    asked = experiment.benchmark.requests
    for name, largest in Counter(prompt.class_name for prompt in experiment.prompts).most_common(1):
        if asked < largest:
            words = {"prompts": count(largest, "prompt"), "name": name}
            yield refused("benchmark.requests too-few", asked, minimum=largest, **words)


def distinct_levels(experiment: Experiment) -> Iterator[Finding]:
    """Each level of concurrency is a cell of its own."""
    levels = experiment.benchmark.concurrency
    if len(set(levels)) < len(levels):
        yield refused("benchmark.concurrency twice", list(levels))


def slo_limits(experiment: Experiment) -> Iterator[Finding]:
    """An SLO must limit a time."""
    if experiment.benchmark.slo and not experiment.benchmark.goodput:
        yield refused("benchmark.slo empty", None)


_ROWS: dict[str, Plain | Drafted] = {row.row: row for row in PLAIN} | {row.row: row for row in DRAFTED}


def figure(name: str, metric: str) -> tuple[float, str] | None:
    """Return a row's `tpot_s`, `speed_up` or `tokens_per_step` with its source; `None` if the row does not have it."""
    row = _ROWS.get(name)
    found = {"tpot_s": row.tpot_s} if row else {}
    if isinstance(row, Drafted):
        found["speed_up"] = row.plain_tpot_s / row.tpot_s
        found |= {"tokens_per_step": row.tokens_per_step} if row.tokens_per_step else {}
    return (found[metric], f"row {name}, {row.source}") if row and metric in found else None


def expected_figures(experiment: Experiment) -> Iterator[Finding]:
    """An expected figure belongs to an arm, and has one source."""
    arms = [arm.name for arm in experiment.arms]
    baselines = [arm.name for arm in experiment.arms if arm.paths.at == experiment.baseline.paths.at]
    for path, expected in _figures(experiment):
        of_baseline = expected.metric == "speed_up" and expected.arm in baselines
        if expected.arm not in arms:
            yield refused("figure no-arm", expected.arm, at=f"{path}.arm", arms=", ".join(arms))
        elif of_baseline:
            yield refused("figure of-the-baseline", expected.metric, at=f"{path}.metric")
        if [expected.row, expected.value].count(None) != 1:
            yield refused("figure one-value", None, at=path)
        elif expected.row is not None and figure(expected.row, expected.metric) is None:
            yield refused("figure no-row", expected.row, at=f"{path}.row", metric=expected.metric)
        elif expected.row is not None and expected.arm in arms and not of_baseline:
            arm = experiment.arms[arms.index(expected.arm)]
            yield from _other_conditions(expected.row, f"{path}.row", arm)
        elif expected.value is not None and not expected.source:
            yield refused("figure without-source", None, at=f"{path}.source")


def measured_figures(experiment: Experiment) -> Iterator[Finding]:
    """An expected figure belongs to classes and loads that are measured."""
    classes = sorted({prompt.class_name for prompt in experiment.prompts})
    for path, expected in _figures(experiment):
        for name in dict.fromkeys(expected.classes) if classes else ():
            if name not in classes:
                yield refused("figure no-class", name, at=f"{path}.classes", classes=", ".join(classes))
        loads = experiment.benchmark.concurrency
        if expected.concurrency not in loads:
            words = {"loads": ", ".join(map(str, loads))}
            yield refused("figure no-load", expected.concurrency, at=f"{path}.concurrency", **words)


def _figures(experiment: Experiment) -> Iterator[tuple[str, ExpectedFigure]]:
    for number, expected in enumerate(experiment.expect.figures if experiment.expect else ()):
        yield f"expect.figures[{number}]", expected


def _other_conditions(name: str, path: str, arm: Arm) -> Iterator[Finding]:
    """The k, mode, batch and number of chips of a row must be those of the arm, as far as the row says them."""
    plain = row = _ROWS[name]
    published: dict[str, Any] = {"k": 0, "mode": "plain"}
    if isinstance(row, Drafted):
        published = {"k": row.num_speculative_tokens, "mode": row.mode}
        plain = _ROWS.get(row.base, row)
    if isinstance(plain, Plain):
        published |= {"batch": plain.batch, "chips": plain.chips}
    treatment, serving = arm.speculation, arm.serving
    own: dict[str, Any] = {
        "k": arm.num_speculative_tokens,
        "mode": treatment.mode if treatment else "plain",
        "batch": serving.max_num_seqs,
        "chips": serving.devices,
    }
    other = [key for key, value in published.items() if own[key] != value]
    if other:
        of_row, of_arm = (
            ", ".join(f"mode {known[key]}" if key == "mode" else f"{key} {known[key]:g}" for key in other)
            for known in (published, own)
        )
        yield refused("figure of-others", name, at=path, arm=arm, of_row=of_row, of_arm=of_arm)


RULES = (
    *(lengths, context_buckets, plan_size, sampling, thinking, every_prompt_asked, distinct_levels),
    *(slo_limits, expected_figures, measured_figures),
)
