"""Parts of a result: its cells, what the optional files of its folder say (`src/trnspec/benchmark/analyse/attachments.py` reads them),
whether answers are equal, and the answers to the simple questions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.plan import Load

_MAX_INT = 1 << 63


class ResultPart(BaseModel):
    """A part of a result. An unknown value is None, never zero, and every number is finite."""

    model_config = ConfigDict(
        frozen=True, populate_by_name=True, serialize_by_alias=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        for name, value in self:
            if isinstance(value, int) and not -_MAX_INT <= value < _MAX_INT:
                raise ValueError(f"{name} is an integer beyond 64 bits")
        return self


class Estimated(ResultPart):
    """A part with a `ratio` and its interval, which may be unknown. They agree with each other, and with a verdict of a direction."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        ratio, low, high = (getattr(self, name) for name in ("ratio", "ci_low", "ci_high"))
        verdict, shown = getattr(self, "verdict", ""), [v for v in (low, ratio, high) if v is not None]
        wrong = (low is None) != (high is None) or (low is not None and ratio is None)
        wrong |= shown != sorted(shown) or min(shown, default=1) <= 0
        wrong |= "faster" in verdict and min(shown, default=0) <= 1
        wrong |= "slower" in verdict and max(shown, default=2) >= 1
        if wrong:
            raise ValueError(
                f"ratio {ratio}, ci_low {low}, ci_high {high} and verdict {verdict!r} contradict each other"
            )
        return self


class Setting(ResultPart):
    """A key of a compiled configuration, of the baseline and of this arm."""

    path: str
    baseline: Any
    this: Any


class EngineDifferences(ResultPart):
    compared: bool
    compiled_at_serving: int = 0
    """Graphs that its server compiled when it started."""
    baseline_key: str
    declared: int
    """Values that differ because the arm speculates."""
    undeclared: list[Setting]


class Score(ResultPart):
    arm: str
    filter: str
    n: int
    correct: int


class ScoreDifference(ResultPart):
    filter: str
    baseline: str
    treatment: str
    n: int
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    gained: int
    lost: int
    p_value: float | None


class Questions(ResultPart):
    dataset: str
    revision: str
    sha256: dict[str, str]


class Quality(ResultPart):
    task: str
    questions: Questions | None
    answered: dict[str, str]
    """The day of each arm's answers."""
    scores: list[Score]
    comparisons: list[ScoreDifference]


class Expectation(ResultPart):
    """A published figure, with a verdict, or the range of the forecast, without one."""

    arm: str
    what: Literal["tpot_s", "speed_up", "tokens_per_step", "plain_tpot_s", "step_over_plain"]
    measured: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    expected: float
    low: float
    high: float
    text: str
    classes: tuple[str, ...] = ()
    concurrency: int | None = None
    verdict: Literal["reproduced", "not reproduced", "cannot tell"] | None = None
    origin: str | None = None


class Quoted(ResultPart):
    about: Literal["decoding", "cost"] = "decoding"
    text: str
    source: str


class Drafting(ResultPart):
    mode: str
    draft: str


class Hardware(ResultPart):
    instance: str
    chips: int


class PredictedCost(ResultPart):
    """The cost of decoding alone, as `./trnspec check` says."""

    usd_per_million_output_tokens: float
    tpot_s: float | None
    concurrency: int


class Repeated(ResultPart):
    """The number of pairs of greedy answers that differ, with the interval of their share."""

    n_pairs: int
    equal: int
    differing: int
    ci_low: float
    ci_high: float


class BaselineRepeated(Repeated):
    arm: str


class TreatmentRepeated(Repeated):
    treatment: str
    p_holm: float | None
    more_than_baseline: bool | None


class Losslessness(ResultPart):
    baseline: BaselineRepeated | None
    """Its second answers; None where it was not asked again."""
    treatments: list[TreatmentRepeated]


class AskedQuestion(ResultPart):
    question: str
    answer: str | None
    error: str | None
    judgement: Literal["right", "wrong", "loop", "noise", "no answer"]


class Sense(ResultPart):
    """The answers of an arm before the load."""

    arm: str
    asked: int
    right: int
    needed: int
    withheld: bool
    """Whether the arm gets no verdict because of its answers."""
    text: str
    questions: list[AskedQuestion]


class ArmFacts(ResultPart):
    """An arm as planned, without its address."""

    name: str
    speculative_tokens: int
    max_tokens_per_step: int
    usd_per_hour: float | None
    also_changes: tuple[str, ...] = ()
    kv_tokens: int | None = None
    baseline: str | None = None


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
