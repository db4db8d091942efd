"""Parts of a result beside its comparisons: what the optional files of a results folder say (`src/trnspec/benchmark/analyse/attachments.py`
reads them), whether answers are equal, and what the simple questions were answered."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

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
