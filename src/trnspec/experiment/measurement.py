"""The sections of an experiment file that say how the arms are asked and what they have to keep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trnspec.experiment.forms import FileSection, Listed, Positive, Seconds

WARMUP = 4
"""Requests to each arm before anything is measured, or as many as the largest load has in flight."""


class Slo(FileSection):
    """What a request has to keep, in seconds. The report has the share of requests within each limit and within all of them (goodput)."""

    ttft_s: Seconds | None = None
    """Time to the first token."""
    tpot_s: Seconds | None = None
    """Time per output token after the first."""
    e2e_s: Seconds | None = None
    """Time to the end of the answer."""


class Benchmark(FileSection):
    """How the arms are asked; the plan of the benchmark pod is made from it."""

    endpoint: Literal["chat", "completions"] = "chat"
    """With the model's chat template, or plain text."""
    thinking: bool = False
    """Whether the model reasons before it answers, where its chat template has a switch for that."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 where a runtime speculates greedily only."""
    max_tokens: Positive = 600
    """Tokens of an answer at most; a line of a prompts file may have its own."""
    concurrency: Annotated[tuple[Positive, ...], Listed(1)] = (4,)
    """Requests in flight; each value is measured by itself. 1, 2, 4, 8, 16, 32 shows up to which load drafting pays."""
    requests: Positive = 32
    """Measured requests of a class in a cell (arm x load); at least the prompts of the largest class. A load is held for four answers in each of four blocks, which may take more requests."""
    mixed: bool = False
    """Whether the classes share a cell, asked in turn, instead of having one each."""
    cell_minutes: Annotated[float, Field(gt=0, le=44_640)] | None = None
    """Most minutes of loading in one cell, all arms together; a cell that is cut has fewer requests."""
    slo: Slo | None = None
    lm_eval: Annotated[int, Field(ge=1, le=1319)] | None = None
    """Questions of gsm8k that lm-eval asks every arm, as 200: speculation must not change the answers. The test set has 1319."""

    @property
    def goodput(self) -> dict[str, float]:
        """What a request has to keep, seconds by metric."""
        return {name: value for name, value in self.slo or () if value is not None}
