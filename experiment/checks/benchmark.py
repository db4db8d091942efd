"""The benchmark's other harness and its extras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment.catalogue.runtimes import RUNTIMES
from experiment.checks.workload import CHAT_TEMPLATE_TOKENS
from experiment.errors import Problem
from experiment.schema import LlmperfSection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.schema import BenchmarkSection, ExpandedFile

MOST_AT_ONCE = 64
"""Requests at once that llmperf was seen to carry out; each is a process of Ray."""
_TAIL = 3
"""Standard deviations that lengths are given room for."""


def llmperf_asked(file: ExpandedFile) -> Iterator[Problem]:
    """Its settings without it."""
    if file.benchmark.llmperf is not None and file.benchmark.harness != "llmperf":
        yield Problem(
            "benchmark.llmperf",
            None,
            f"is never used by harness {file.benchmark.harness}",
            "remove it, or say `harness: llmperf`",
            ("benchmark.harness",),
        )


def llmperf_can(file: ExpandedFile) -> Iterator[Problem]:
    """What llmperf's client cannot do, or would do otherwise than the file says."""
    settings = file.benchmark
    if settings.harness != "llmperf":
        return
    said = settings.model_fields_set
    for key, wrong, why, remedy in (
        ("endpoint", settings.endpoint != "chat", "llmperf asks for chat completions only", "use chat"),
        (
            "thinking",
            settings.thinking,
            "llmperf takes the first word after the reasoning for the first token",
            "use false",
        ),
        (
            "warmup",
            "warmup" in said and settings.warmup > 0,
            "llmperf asks nothing that it does not count",
            "use 0",
        ),
        ("seed", "seed" in said, "llmperf has one of its own, 11111", "remove the key"),
    ):
        if wrong:
            yield _problem(settings, key, why, remedy)
    for number, level in enumerate(settings.concurrency):
        if level > MOST_AT_ONCE:
            yield Problem(
                f"benchmark.concurrency[{number}]",
                level,
                f"llmperf starts a process for each request at once, and was tried with {MOST_AT_ONCE} at most",
                f"use {MOST_AT_ONCE} or fewer, or `harness: native`",
                ("benchmark.harness",),
            )


def _problem(settings: BenchmarkSection, key: str, why: str, remedy: str) -> Problem:
    value: Any = getattr(settings, key)
    return Problem(f"benchmark.{key}", value, why, f"{remedy}, or `harness: native`", ("benchmark.harness",))


def llmperf_lengths(file: ExpandedFile) -> Iterator[Problem]:
    """llmperf's prompts and answers must fit `max_model_len`, those far from the mean too."""
    if file.benchmark.harness != "llmperf":
        return
    asked = file.benchmark.llmperf or LlmperfSection()
    limit = file.serving.max_model_len
    room = (
        limit
        - CHAT_TEMPLATE_TOKENS
        - file.benchmark.max_tokens
        - _TAIL * (asked.stddev_input_tokens + asked.stddev_output_tokens)
    )
    if asked.mean_input_tokens > room:
        yield Problem(
            "benchmark.llmperf.mean_input_tokens",
            asked.mean_input_tokens,
            f"with {file.benchmark.max_tokens} to generate, {_TAIL} deviations of both and {CHAT_TEMPLATE_TOKENS} for the "
            f"template it is above max_model_len {limit}",
            f"use {room} or less"
            if room > 40
            else "lower benchmark.max_tokens or raise serving.max_model_len",
            ("serving.max_model_len", "benchmark.max_tokens", "benchmark.llmperf"),
        )


def in_a_cluster(file: ExpandedFile) -> Iterator[Problem]:
    """llmperf and lm-eval run as pods."""
    runtime = RUNTIMES.get(file.runtime)
    if runtime is None or not runtime.lab_only:
        return
    for path, value, remedy in (
        ("benchmark.lm_eval", file.benchmark.lm_eval, "remove the section"),
        ("benchmark.harness", file.benchmark.harness == "llmperf" or None, "use `native`"),
    ):
        if value is not None:
            yield Problem(
                path,
                None,
                f"runs as a pod, and runtime {runtime.name} runs in the lab only",
                remedy,
                ("runtime",),
            )


RULES = (llmperf_asked, llmperf_can, llmperf_lengths, in_a_cluster)
