"""The sections of an experiment file that say how the arms are asked, what they have to keep, and what a search may spend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from benchmark.objectives import by_percentile
from experiment import forms
from experiment.forms import FileSection, Listed, NotNegative, Percentiles, Positive, Seconds


class Slo(FileSection):
    """What a single request has to keep, in seconds; goodput is the requests that keep all of it."""

    ttft_s: Seconds | None = None
    """Time to the first token."""
    tpot_s: Seconds | None = None
    """Time per output token after the first."""
    e2e_s: Seconds | None = None
    """Time to the end of the answer."""


class Objective(FileSection):
    """What an arm has to keep, in seconds by percentile of its requests: `tpot_s: {p95: 0.04}`, for which 0.04 is short. It is met where
    that is sure with 95 % confidence; p95 needs 59 different prompts, all within it, and p99 needs 299."""

    ttft_s: Percentiles | None = None
    """Time to the first token."""
    tpot_s: Percentiles | None = None
    """Time per output token after the first."""
    e2e_s: Percentiles | None = None
    """Time to the end of the answer."""


class Budget(FileSection):
    """What a search may spend; whichever is spent first ends it. Each round of arms has as much."""

    cells: Annotated[int, Field(ge=2, le=64)] = 12
    """Cells, each of all arms and classes at one load; the first is then measured once more, to show drift."""
    minutes: Annotated[float, Field(gt=0, le=44_640)] | None = None
    """Minutes of loading, after which no cell is begun."""
    usd: Annotated[float, Field(gt=0, le=forms.MAX_NUMBER)] | None = None
    """Dollars that all arms together cost in that time, after which no cell is begun."""


class SearchedLoad(FileSection):
    """Loads that the run chooses itself, one after the other: up to which one each treatment pays, and which one is the
    cheapest within an objective. Instead of `concurrency`."""

    search: Annotated[tuple[Annotated[int, Field(gt=0, le=4096)], ...], Listed(2, 2)] | None = None
    """Closed loop: the fewest and the most requests at once, as in [1, 64]."""
    search_rate: Annotated[tuple[Annotated[float, Field(ge=0.0001, le=10_000)], ...], Listed(2, 2)] | None = (
        None
    )
    """Open loop instead: the lowest and the highest mean of requests that arrive in a second."""
    objective: Objective | None = None
    budget: Budget = Budget.model_construct()


class LmEval(FileSection):
    """gsm8k of lm-eval, asked of every arm: speculation must not change what is answered."""

    limit: Annotated[int, Field(ge=1, le=1319)] = 200
    """Questions asked; gsm8k's test set has 1319."""


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
    """Requests in flight; each value is measured by itself."""
    load: SearchedLoad | None = None
    requests: Positive = 32
    """Measured requests of a class in a cell (arm x load), of a search in about four cells; at least the prompts of the largest
    class. A load is held for four answers in each of four blocks, which may take more requests."""
    mixed: bool = False
    """Whether the classes share a cell, asked in turn, instead of having one each; a search always mixes them."""
    cell_minutes: Annotated[float, Field(gt=0, le=44_640)] | None = None
    """Most minutes of loading in one cell, all arms together; a cell that is cut has fewer requests."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 4
    """Requests to each arm before anything is measured; unless 0, at least as many as the largest load has in flight."""
    seed: NotNegative = 1
    """Decides the order of the arms and what is put before each prompt."""
    slo: Slo | None = None
    objective: Objective | None = None
    lm_eval: LmEval | None = None

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """What an arm has to keep, seconds by metric and percentile."""
        objective = self.load.objective if self.load else self.objective
        return {name: by_percentile(limit) for name, limit in objective or () if limit is not None}

    @property
    def goodput(self) -> dict[str, float]:
        """What a request has to keep, seconds by metric."""
        return {name: value for name, value in self.slo or () if value is not None}

    @property
    def known_concurrency(self) -> tuple[int, ...]:
        """The loads that are known before the run; none where they are searched."""
        return () if self.load else self.concurrency

    @property
    def most_at_once(self) -> int | None:
        """The most requests in flight; None where they arrive at a rate."""
        known = self.load.search if self.load else self.concurrency
        return max(known) if known else None
