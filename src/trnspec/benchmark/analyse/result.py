"""The result of a run: what `summary.json` holds, and what page, terminal, tables, gate and all other readers read.

An unknown value is null, never zero. A cell is identified by its arm, its class and its load: `concurrency` for a closed loop
(`rate_per_s` null), `rate_per_s` for an open one (`concurrency` null).
"""

from __future__ import annotations

from functools import partial
from reprlib import repr as shown
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trnspec.benchmark.analyse.result_parts import (
    ArmFacts,
    At,
    Cell,
    Drafting,
    EngineDifferences,
    Estimated,
    Expectation,
    Hardware,
    Losslessness,
    PredictedCost,
    Quality,
    Quoted,
    ResultPart,
    Sense,
    UnderLoad,
    WindowAtLoad,
)
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import Load

Verdict = Literal[
    "faster", "a little faster", "same", "a little slower", "slower", "cannot tell", "too few prompts", "withheld"
]  # fmt: skip
"""The meaning of the interval of a ratio (`src/trnspec/benchmark/analyse/speed_up.py` has the rule)."""


class ShareOfMix(ResultPart):
    """A class in the mix; a share of 0 has too few prompts. Times are geometric means over pairs."""

    class_: str = Field(alias="class")
    n_prompts: int
    share: float
    baseline_tpot_s: float
    treatment_tpot_s: float


class Comparison(At, Estimated):
    """A treatment against its baseline by one metric. A ratio above 1 is better, whatever the metric's direction.

    The verdict is what the interval says. The intervals of a metric hold together for all classes and treatments of a load, those over
    the mix for all treatments.
    """

    baseline: str
    treatment: str
    metric: str
    window: int
    """Speculative tokens; 0 is plain decoding."""
    family: str
    """The treatment without its window; a figure connects the windows of a family with a line."""
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    together: int = 1
    """The number of intervals that hold together."""
    n_pairs: int = 0
    n_prompts: int = 0
    verdict: Verdict
    one_start: bool = False
    """Whether the verdict is about the one start of the servers that was measured."""
    p_value: float | None = None
    """The p-value of a ratio from 0.95 to 1.05, for this comparison alone; null where the verdict is withheld."""
    p_holm: float | None = None
    """The same after Holm's correction over the classes and treatments of the load. No verdict depends on it."""
    detectable_ratio: float | None = None
    prompts_to_tell: int | None = None
    """Prompts per class with which a run would tell in four of five repetitions; None if this one tells."""
    # Of the time per output token alone.
    baseline_tpot_s: float | None = None
    treatment_tpot_s: float | None = None
    usd_before: float | None = None
    """Dollars per million output tokens, prompts and waiting included."""
    usd_after: float | None = None
    tokens_per_step: float | None = None
    step_cost: float | None = None
    """The time of a step, in steps of the baseline."""
    classes: tuple[ShareOfMix, ...] = ()


class Explanation(At):
    baseline: str
    treatment: str
    tokens_per_step: float | None
    step_time_ratio: float | None = None
    unknown: str = ""
    """The reason why its steps are not known."""


class OverOther(Estimated):
    """The best treatment against another one."""

    arm: str
    ratio: float
    ci_low: float | None = None
    ci_high: float | None = None
    together: int
    verdict: Verdict
    one_start: bool


class Best(At):
    """The best of several treatments with one baseline."""

    baseline: str
    arm: str
    over: list[OverOther]

    @property
    def alike(self) -> list[str]:
        """Treatments over which it is not shown to be faster."""
        return [other.arm for other in self.over if other.verdict not in ("faster", "a little faster")]


class PaysUpTo(ResultPart):
    class_: str | None = Field(alias="class")
    baseline: str
    treatment: str
    by: Literal["concurrency", "rate"]
    pays: float | None
    """The last load at which the treatment is faster."""
    costs: float | None
    """The first load above that at which it is slower or a little slower."""
    loads: list[tuple[float, Verdict]] = Field(min_length=1)


class LimitKept(UnderLoad):
    """The share of an arm's requests within a limit of the SLO, over all classes, with its 95 % interval over prompts."""

    arm: str
    metric: str | None
    """None: within all limits."""
    limit_s: float | None
    n: int
    within: int
    prompts: int
    share: float
    low: float
    high: float


AdviceCode = Literal[
    "do not switch yet", "too few prompts", "use", "use for some", "keep", "keep for now", "cannot tell", "none"
]  # fmt: skip


class Advice(UnderLoad):
    """The advice for a load: `use` the arm, for all classes or for some; `keep` the baseline, or keep it for now, because a restart can
    change the difference; `do not switch yet`, because of its answers or failures; `none`, because nothing is compared."""

    baseline: str
    arm: str | None
    advice: AdviceCode
    sentence: str


class Run(ResultPart):
    """The plan of a run, its time, its client."""

    id: str
    experiment: str
    model: str
    baseline: str
    arms: list[ArmFacts]
    aa: bool
    """Whether two arms have one address."""
    provenance: Literal["measured", "emulated"]
    started: str
    finished: str | None
    plan_sha256: str
    prompts_sha256: str
    """Runs with other prompts cannot be compared."""
    complete: bool
    requests_planned: int
    requests_recorded: int
    sittings: int
    requests_per_cell: int
    warmup: int
    seed: int
    max_tokens: int
    temperature: float
    ignore_eos: bool
    slo: dict[str, float] | None
    extra_body: dict[str, Any]
    timeout_s: float
    client: str
    python: str
    token_source: str | None
    interval: str
    mix: dict[str, float] = Field(default_factory=dict)
    """The user's shares of the output tokens, by class; empty: equal ones."""
    dummy_weights: bool = False
    """Whether the plan says that texts mean nothing."""

    def baseline_of(self, name: str) -> str:
        """The baseline of an arm; a baseline has itself."""
        return next(arm.baseline for arm in self.arms if arm.name == name) or self.baseline

    @property
    def treatments(self) -> list[ArmFacts]:
        return [arm for arm in self.arms if self.baseline_of(arm.name) != arm.name]


class Restart(ResultPart):
    """The counters of a server began again between two moments."""

    arm: str
    after: str
    before: str


class NodeReplaced(ResultPart):
    at: str
    arm: str
    before: str
    after: str


class Gap(ResultPart):
    from_: str = Field(alias="from")
    to: str
    seconds: float
    resumed: bool
    """Whether the run was resumed in it."""


class Drift(Estimated):
    """An arm in the first cell against its repetition at the end; above 1 it was faster at the end."""

    arm: str
    metric: str
    ratio: float
    ci_low: float | None
    ci_high: float | None
    n_pairs: int
    n_prompts: int
    verdict: Verdict


class Course(ResultPart):
    restarts: list[Restart]
    nodes: list[NodeReplaced]
    gaps: list[Gap]
    drift: list[Drift]


Outcome = Literal["fine", "caution", "withheld", "not asked"]


class Evidence(UnderLoad):
    """A check between measurement and verdict. `withheld` takes the verdict from every comparison that it names."""

    _of_all_loads = True
    check: str
    arm: str | None = None
    """None: all arms."""
    class_: str | None = Field(None, alias="class")
    """None: all classes."""
    concurrency: int | None = None
    rate_per_s: float | None = None
    """Without either: all loads."""
    metric: str | None = None
    """None: every metric."""
    outcome: Outcome
    says: str
    """The finding with its numbers: a clause without a full stop, as `remedy` is."""
    remedy: str = ""


passed, not_checked = partial(Evidence, outcome="fine"), partial(Evidence, outcome="not asked")
caution, withheld = partial(Evidence, outcome="caution"), partial(Evidence, outcome="withheld")


class Result(ResultPart):
    schema_: Literal[2] = Field(2, alias="schema")
    run: Run
    question: str = ""
    sentence: str = ""
    here: int = 0
    """Index in `advice` of the load that the sentence is about: of those at which an arm is used, if there are any, the one with the
    cheapest tokens, or the largest if prices are unknown."""
    advice: tuple[Advice, ...] = ()
    cells: list[Cell]
    comparisons: list[Comparison]
    evidence: tuple[Evidence, ...] = ()
    mix: list[Comparison]
    """The comparison of each treatment over the mix of all classes, by load (`src/trnspec/benchmark/analyse/speed_up.py`)."""
    best: list[Best]
    pays_up_to: list[PaysUpTo]
    """The loads at which treatments pay, of several loads, by the verdicts of `mix` and `comparisons`; empty for an A/A."""
    windows: tuple[WindowAtLoad, ...] = ()
    """The window for each load of a closed loop, of two loads or more."""
    explanations: list[Explanation]
    limits_kept: list[LimitKept]
    losslessness: Losslessness | None
    """None where answers were drawn at a temperature."""
    course: Course
    sense: list[Sense]
    """One for each arm; empty where none was asked."""
    # From the optional files of a results folder.
    served_by: str = ""
    """The engines, in words."""
    engines: dict[str, EngineDifferences] = Field(default_factory=dict)
    quality: Quality | None = None
    expectations: tuple[Expectation, ...] = ()
    quoted: tuple[Quoted, ...] = ()
    """Published results of the same target."""
    drafts: dict[str, Drafting] = Field(default_factory=dict)
    hardware: dict[str, Hardware] = Field(default_factory=dict)
    predicted_cost: dict[str, PredictedCost] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _of_one_run(self) -> Self:
        """Every part is about an arm of the run, and the sentence about one of its loads."""
        arms = {arm.name for arm in self.run.arms}
        compared = (*self.comparisons, *self.mix, *self.explanations, *self.pays_up_to)
        named = {self.run.baseline, *(arm.baseline or self.run.baseline for arm in self.run.arms)}
        named |= {one.arm for one in (*self.cells, *self.best)}
        named |= {name for one in compared for name in (one.baseline, one.treatment)}
        if unknown := sorted(named - arms):
            raise ValueError(f"{shown(unknown[0])} is not an arm of the run")
        if not self.cells or not 0 <= self.here < len(self.loads):
            raise ValueError(f"here is {self.here}, of {len(self.loads)} loads")
        return self

    @property
    def withheld(self) -> bool:
        """Whether the whole answer is withheld: every verdict about the time per token or, without a comparison, every cell."""
        verdicts = [one.verdict for one in (*self.comparisons, *self.mix) if one.metric == TPOT.name]
        return {*verdicts} == {"withheld"} or not (verdicts or any(cell.n for cell in self.cells))

    @property
    def loads(self) -> list[Load]:
        return list(dict.fromkeys(cell.load for cell in self.cells))
