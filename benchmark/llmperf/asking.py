"""What llmperf is asked for one cell: its options, its text, its environment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import benchmark
from benchmark.errors import PlanError
from benchmark.measure.client import API_KEY
from benchmark.measure.records import BY_LLMPERF
from benchmark.plan import Arm, Plan, Prompt

COMMIT = "f1d6bed"
"""Of github.com/ray-project/llmperf, the last one there is (2024-12-09)."""
SEED = 11111
"""llmperf's own, for its choice of lines and lengths; it cannot be set."""
SONNETS = "sonnets"
TOKENIZER = "hf-internal-testing/llama-tokenizer"
"""llmperf loads it by this name: a folder of that name below the working directory is taken for it."""
LEAST_INPUT_TOKENS = 41
"""By llmperf's own word: its instruction alone comes to that, and shorter prompts keep it looking for ever."""
_CODE = Path(benchmark.__file__).resolve().parents[1]
_MENDING = ("mending", "observed", "program", "witness")
_S_PER_TOKEN = 0.2
_START_S = 300
Text = Literal["sonnets", "classes"]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long llmperf's prompts and answers are, in tokens of Llama's tokenizer, which it counts with.

    As text, the options that say so.
    """

    mean_input_tokens: int
    stddev_input_tokens: int = 0
    stddev_output_tokens: int = 0

    def __str__(self) -> str:
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in vars(self).items())


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of llmperf."""

    arm: Arm
    class_: str
    concurrency: int

    def __str__(self) -> str:
        return f"{self.arm.name}, {self.class_}, {self.concurrency} at a time"


def as_asked(plan: Plan, text: Text) -> Plan:
    """The plan as llmperf carries it out. Raises PlanError for what it cannot do."""
    for key, value in (
        ("rate", plan.rate),
        ("duration_s", plan.duration_s),
        ("simultaneous", plan.simultaneous),
        ("ignore_eos", plan.ignore_eos),
    ):
        if value:
            raise PlanError(f"{key} {value!r}: llmperf cannot do that; leave it out, or use `benchmark run`")
    if plan.rounds != 1:
        raise PlanError(f"rounds {plan.rounds}: llmperf passes once; use 1, or `benchmark run`")
    found = replace(plan, warmup=0, seed=SEED)
    if text == SONNETS:
        return replace(
            found, prompts=(Prompt(id=SONNETS, class_=SONNETS, prompt="(lines of llmperf's sonnets)"),)
        )
    for prompt in plan.prompts:
        _line_of(prompt)
    return found


def lines(plan: Plan, class_: str) -> str:
    """The text that llmperf draws its prompts from: those of a class, a line each. Raises PlanError."""
    return "".join(f"{_line_of(prompt)}\n" for prompt in plan.prompts if prompt.class_ == class_)


def _line_of(prompt: Prompt) -> str:
    """llmperf has one message of the user, and one limit of tokens for all."""
    if prompt.max_tokens is not None:
        raise PlanError(
            f"prompt {prompt.id}: has its own max_tokens, and llmperf has one for all; leave it out"
        )
    if prompt.prompt is not None:
        return prompt.prompt
    messages = prompt.messages or ()
    if len(messages) != 1 or messages[0].get("role") != "user":
        raise PlanError(
            f"prompt {prompt.id}: is a conversation, and llmperf sends one text; leave one message of the user"
        )
    return str(messages[0]["content"])


def patience_s(plan: Plan, wanted: int, concurrency: int) -> int:
    """How long a cell may take: every answer of full length at 0.2 s a token, and the start of Ray."""
    return int(-(-wanted // concurrency) * plan.max_tokens * _S_PER_TOKEN) + _START_S


def options(plan: Plan, cell: Cell, lengths: Lengths, *, wanted: int, results: Path) -> list[str]:
    """llmperf's options for a cell of which `wanted` requests are left."""
    sampling = {
        "temperature": plan.temperature,
        "stream_options": {"include_usage": True},
        **plan.extra_body,
    }
    told = {
        "--model": plan.model,
        "--llm-api": "openai",
        "--num-concurrent-requests": cell.concurrency,
        "--max-num-completed-requests": wanted,
        "--mean-input-tokens": lengths.mean_input_tokens,
        "--stddev-input-tokens": lengths.stddev_input_tokens,
        "--mean-output-tokens": plan.max_tokens,
        "--stddev-output-tokens": lengths.stddev_output_tokens,
        "--timeout": patience_s(plan, wanted, cell.concurrency),
        "--additional-sampling-params": json.dumps(sampling),
        "--results-dir": results,
    }
    return [str(word) for pair in told.items() for word in pair]


def environment(cell: Cell, *, home: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Of the process: the caller's, llmperf's sources in `home`, the arm's address, nothing that phones home."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (_CODE, home, home / "src"))),
        "OPENAI_API_BASE": cell.arm.url,
        "OPENAI_API_KEY": os.environ.get(API_KEY) or "none",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        **own,
    }


def described(lengths: Lengths, text: Text, home: Path) -> str:
    """Who measured: the command, for what the plan does not say, then which llmperf, how mended, counting with what."""
    counted = tokenizer(home) or "of unknown revision"
    return f"{BY_LLMPERF}--text {text} {lengths} (commit {COMMIT}, mended by {patch()}, tokenizer {counted})"


def patch() -> str:
    """Which mending: the hash of the modules that run beside llmperf's own."""
    digest = hashlib.sha256()
    for module in _MENDING:
        digest.update((Path(__file__).parent / f"{module}.py").read_bytes())
    return digest.hexdigest()[:12]


def tokenizer(home: Path) -> str | None:
    """The revision of llmperf's tokenizer, where whoever installed it wrote it down."""
    stamp = home / TOKENIZER / "REVISION"
    return stamp.read_text(encoding="utf-8").strip() if stamp.is_file() else None
