"""The cells of a result: an arm in a class under a load."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from trnspec.benchmark.analyse.attached import ResultPart
from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.plan import Load


class UnderLoad(ResultPart):
    _of_all_loads: ClassVar[bool] = False
    """Whether it may be without a load, and so of all of them."""
    concurrency: int | None
    rate_per_s: float | None

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        known = [size for size in (self.concurrency, self.rate_per_s) if size is not None]
        if len(known) > 1 or not (known or self._of_all_loads) or any(size <= 0 for size in known):
            raise ValueError("a load is either a concurrency or a rate_per_s, above 0")
        return self

    @property
    def load(self) -> Load:
        return Load(concurrency=self.concurrency, rate_per_s=self.rate_per_s)


class At(UnderLoad):
    """A part that belongs to a class under a load."""

    class_: str | None = Field(alias="class")
    """None: the mix of all classes, with equal shares of the output tokens."""

    @property
    def place(self) -> CellKey:
        return CellKey(self.class_ or "", self.load)


class Distribution(ResultPart):
    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.n < 1 or not self.p50 <= self.p90 <= self.p95 <= self.p99:
            raise ValueError("percentiles fall, or are of no value")
        return self


class Acceptance(ResultPart):
    source: str
    tokens_per_step: float | None
    per_position: list[float] | None
    """The share of steps in which draft 1, 2, ... was accepted."""
    ceiling: int
    steps: int | None
    distribution: dict[str, int] | None
    """Chunks by their number of tokens."""
    steps_above_ceiling: int
    caution: str | None
    """The reason why chunks are not taken for steps."""
    note: str


class Equality(ResultPart):
    """The number of pairs in which an arm wrote the same text as its baseline."""

    baseline: str
    n_pairs: int
    equal: int
    rate: float | None
    first_divergence_chars: list[int]


class Throughput(ResultPart):
    requests_per_s: float
    output_tokens_per_s: float | None
    loaded_s: float
    client_lag_s: float | None


class Goodput(ResultPart):
    slo: dict[str, float]
    share: float
    per_s: float | None


class Cost(ResultPart):
    usd_per_million_output_tokens: float
    usd_per_hour: float


class Cell(At):
    """An arm in a class under a load. Distributions are over requests, that of the inter-chunk latency over chunks."""

    arm: str
    n: int
    errors: int
    error_rate: float | None
    error_names: dict[str, int]
    forced_length: int
    cached_tokens: int
    token_source: str | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    inter_chunk_latency_s: Distribution | None
    output_tokens_per_s: Distribution | None
    tokens_per_chunk: Distribution | None
    tokens_per_step: Distribution | None
    llmperf_inter_token_latency_s: Distribution | None
    completion_tokens: Distribution | None
    acceptance_length: float | None
    acceptance: Acceptance
    output_equality: Equality | None
    throughput: Throughput | None
    goodput: Goodput | None
    cost: Cost | None


class WindowAtLoad(ResultPart):
    """The window to serve with at a number of concurrent requests; 0 is plain decoding."""

    concurrency: int
    window: int
    arm: str | None = None
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    cannot_tell: str = ""
    """The reason why a larger window was not taken; empty where the measurement decides."""
