"""The requests: do they fit the context, and can the servers answer them as asked?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS
from experiment.catalogue.runtimes import RUNTIMES
from experiment.errors import Problem
from experiment.prompts import MIN_PROMPTS_PER_CLASS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.arms import Prompt
    from experiment.schema import ExperimentFile

NONCE_TOKENS = 16
"""Room for the few characters that the benchmark puts before each prompt to defeat prefix caching."""
CHAT_TEMPLATE_TOKENS = 32
"""Room for role markers and the empty reasoning block of a chat template, per request."""


def lengths(file: ExperimentFile, prompts: tuple[Prompt, ...]) -> Iterator[Problem]:
    """Prompt (upper bound: its UTF-8 bytes) and answer must fit `max_model_len`."""
    limit = file.serving.max_model_len
    for prompt in prompts:
        room = NONCE_TOKENS + (CHAT_TEMPLATE_TOKENS if prompt.messages else 0)
        answer = prompt.max_tokens or file.benchmark.max_tokens
        need = prompt.utf8_bytes + room + answer
        if need > limit:
            path = "prompts.file" if file.prompts.file else f"prompts.classes.{prompt.class_name}"
            yield Problem(
                path,
                prompt.id,
                f"up to {prompt.utf8_bytes} prompt tokens (its UTF-8 bytes) + {room} for "
                f"nonce and template + {answer} to generate = {need}, above max_model_len {limit}",
                "shorten the prompt, lower benchmark.max_tokens or raise serving.max_model_len",
                ("serving.max_model_len", "benchmark.max_tokens"),
            )


def sampling(file: ExperimentFile, _prompts: tuple[Prompt, ...]) -> Iterator[Problem]:
    """Where speculation is greedy only, a temperature would be obeyed by one arm and ignored by the other."""
    runtime = RUNTIMES.get(file.runtime)
    speculates = any(arm.speculation for arm in file.arms)
    if runtime and runtime.greedy_speculation_only and speculates and file.benchmark.temperature > 0:
        yield Problem(
            "benchmark.temperature",
            file.benchmark.temperature,
            f"runtime {runtime.name} speculates "
            "greedily whatever a request asks for, so the arms would answer differently",
            "use 0",
            ("runtime",),
        )


def thinking(file: ExperimentFile, _prompts: tuple[Prompt, ...]) -> Iterator[Problem]:
    """Reasoning is a switch of the chat template."""
    target = MODELS.get(file.target.model)
    if not file.benchmark.thinking:
        return
    if file.benchmark.endpoint != "chat":
        yield Problem(
            "benchmark.thinking",
            True,
            "only the chat template can switch it",
            "use `endpoint: chat`",
            ("benchmark.endpoint",),
        )
    elif target is not None and not target.can_think:
        yield Problem(
            "benchmark.thinking", True, f"{target.name} has no such switch", "use false", ("target.model",)
        )


def classes_covered(file: ExperimentFile, prompts: tuple[Prompt, ...]) -> Iterator[Problem]:
    """Every prompt of a class should be asked as often as the others."""
    sizes: dict[str, int] = {}
    for prompt in prompts:
        sizes[prompt.class_name] = sizes.get(prompt.class_name, 0) + 1
    for name, size in sizes.items():
        if size >= MIN_PROMPTS_PER_CLASS and file.benchmark.requests % size:
            yield Problem(
                "benchmark.requests",
                file.benchmark.requests,
                f"is no multiple of the {size} prompts of "
                f"class {name!r}, so some would count more than others",
                f"use {max(1, round(file.benchmark.requests / size)) * size}",
                ("prompts",),
            )
            return  # one count to change, whatever the number of classes


RULES = (lengths, sampling, thinking, classes_covered)
