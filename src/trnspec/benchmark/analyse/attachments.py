"""Optional files of a results folder: how the engines were compiled, how well they answer, and what was expected of the run.

    DIR/engines/<arm>.json     `neuron_config_differences.json` of the arm's artifact
    DIR/lmeval/<arm>/...       files of lm-eval with `--log_samples`; `lmeval/questions.json`: the questions
    DIR/expected.json          {"schema": 1, "arms": [{"arm", "instance", "chips", "plain_tpot_s", "plain_tpot_low_s", "plain_tpot_high_s",
                               "drafted": {"step_over_plain", "step_over_plain_low", "step_over_plain_high"} | null}],
                               "quoted": [{"text", "source", "about"}], "figures": [{"arm", "metric", "classes", "concurrency", "value", "tolerance",
                               "source"}]}

All files are optional. If a file is missing, its part of the summary is missing too, and the report says so. Another program, which knows
the models, writes the expected values; this package only compares. A null value means that no value is expected. A figure without classes
is about all classes. It is reproduced if the whole interval of the run is within the tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from trnspec.benchmark.analyse.acceptance import tokens_per_step_at
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.result_parts import (
    Drafting,
    EngineDifferences,
    Quality,
    Questions,
    Quoted,
    Score,
    ScoreDifference,
    Setting,
)
from trnspec.benchmark.analyse.speed_up import log_gains, mapped_back
from trnspec.benchmark.analyse.statistics import Estimate, compare, joined, of_sample
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.metrics import TOKENS_PER_STEP, TPOT
from trnspec.benchmark.plan import Load
from trnspec.core.files import UnreadableFile, model_in, text_of
from trnspec.core.safe_output import one_line

ENGINES, ANSWERS, QUESTIONS, EXPECTED = "engines", "lmeval", "questions.json", "expected.json"
VERDICTS = {"reproduced": "reproduced", "not reproduced": "not reproduced", "cannot tell": "inconclusive"}
"""The words of each code of the summary."""
Answers = Mapping[str, bool]
"""Question -> whether the answer is correct."""


Part = TypeVar("Part", bound=BaseModel)


def _read(path: Path, model: type[Part]) -> Part:
    try:
        return model_in(path, model)
    except UnreadableFile as error:
        raise _invalid(path, error) from None


def _invalid(path: Path, why: object) -> ResultsError:
    return ResultsError(f"{path}: {one_line(str(why))}; fetch it again, or remove it")


class _Difference(Setting):
    declared: bool


class _EngineFile(BaseModel):
    """The file that `store` writes beside an artifact."""

    compared: bool
    compiled_at_serving: Annotated[int, Field(ge=0)] = 0
    baseline: str
    differences: list[_Difference] = []


def engines_in(folder: Path, arms: Iterable[str]) -> dict[str, EngineDifferences]:
    """For each arm: whether its configuration was compared, and which differences are not declared as speculation. Raises ResultsError."""
    rows = {}
    for arm in arms:
        if (path := folder / ENGINES / f"{arm}.json").exists():
            file = _read(path, _EngineFile)
            undeclared = [one for one in file.differences if not one.declared]
            rows[arm] = EngineDifferences(
                compared=file.compared,
                compiled_at_serving=file.compiled_at_serving,
                baseline_key=file.baseline.rstrip("/").rpartition("/")[2],
                declared=len(file.differences) - len(undeclared),
                undeclared=undeclared,
            )
    return rows


def quality_in(folder: Path, baselines: Mapping[str, str]) -> Quality | None:
    """Scores of every arm with answers, and each treatment compared with its baseline; None without any answers. Raises ResultsError."""
    folder = folder / ANSWERS
    # lm-eval's last file of answers, by the time in its name
    every = {arm: [*(folder / arm).rglob("samples_gsm8k_*.jsonl")] for arm in baselines}
    files = {arm: max(own, key=lambda path: path.name) for arm, own in every.items() if own}
    asked = {arm: answers for arm, file in files.items() if (answers := _answers(file))}
    if not asked:
        return None
    scores, pairs, path = [], [], folder / QUESTIONS
    questions = _read(path, Questions) if path.exists() else None
    for arm, answers in asked.items():
        for name, marks in answers.items():
            scores.append(Score(arm=arm, filter=name, n=len(marks), correct=sum(marks.values())))
            if arm != (baseline := baselines[arm]) and name in asked.get(baseline, {}):
                known = compare(asked[baseline][name], marks)
                pairs.append(ScoreDifference(filter=name, baseline=baseline, treatment=arm, **known))
    days = {arm: re.search(r"\d{4}-\d\d-\d\d", files[arm].name) for arm in asked}
    answered = {arm: day[0] if day else "an unknown day" for arm, day in days.items()}
    return Quality(task="gsm8k", questions=questions, answered=answered, scores=scores, comparisons=pairs)


class _AnswerLine(BaseModel):
    filter: str
    doc_hash: str
    exact_match: float


def _answers(path: Path) -> Mapping[str, Answers]:
    """For each filter, whether each question was answered correctly."""
    rows: dict[str, dict[str, bool]] = {}
    try:
        lines = text_of(path).splitlines()
    except UnreadableFile as error:
        raise _invalid(path, error) from None
    for number, line in enumerate(lines, start=1):
        try:
            one = _AnswerLine.model_validate_json(line)
        except ValidationError:
            raise _invalid(path, f"line {number} is not an answer of lm-eval") from None
        rows.setdefault(one.filter, {})[one.doc_hash] = one.exact_match == 1
    return rows


class Quantity(NamedTuple):
    """A quantity that is compared, with its name in all texts and pictures."""

    title: str
    unit: str
    scale: float
    """Factor from the unit of the summary."""
    better: str

    @property
    def label(self) -> str:
        """`time per output token, ms, lower is better`."""
        return ", ".join(filter(None, (self.title, self.unit, f"{self.better} is better")))

    def shown(self, *values: float | None) -> list[str]:
        """The values in the unit, without the name of the unit."""
        return ["-" if value is None else f"{value * self.scale:.3g}" for value in values]


_TPOT = Quantity("time per output token", "ms", 1000, "lower")
QUANTITIES = {
    "tpot_s": _TPOT,
    "speed_up": Quantity("speed-up", "", 1, "higher"),
    "tokens_per_step": Quantity("tokens per step", "", 1, "higher"),
    "plain_tpot_s": _TPOT,
    "step_over_plain": Quantity("decode step with drafts", "plain steps", 1, "lower"),
}
"""The quantity of each `what`."""
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Value = _Positive | None


class _StepForecast(BaseModel):
    step_over_plain: _Value
    step_over_plain_low: _Value
    step_over_plain_high: _Value


class _ArmForecast(BaseModel):
    arm: str
    instance: str
    chips: Annotated[int, Field(gt=0)]
    speculation: Drafting | None = None
    plain_tpot_s: _Value
    plain_tpot_low_s: _Value
    plain_tpot_high_s: _Value
    drafted: _StepForecast | None = None
    engine: str
    concurrency: Annotated[int, Field(validation_alias="at_once")]
    plain_usd_per_million: _Value = None


class _PublishedFigure(BaseModel):
    arm: str
    metric: Literal["tpot_s", "speed_up", "tokens_per_step"]
    classes: list[str]
    concurrency: int
    value: _Positive
    tolerance: Annotated[float, Field(gt=0, lt=1)]
    source: str


class _ExpectedFile(BaseModel):
    arms: list[_ArmForecast]
    quoted: list[Quoted]
    figures: list[_PublishedFigure]


def against_published(folder: Path, result: Result, cells: RequestsByCell) -> dict[str, Any]:
    """`expectations`, `quoted`, `drafts`, `hardware` and `predicted_cost` of the result of `cells`. Values without classes of their own are
    geometric means over the classes at the largest load.

    Raises ResultsError for an invalid file.
    """
    path = folder / EXPECTED
    expected = _read(path, _ExpectedFile) if path.exists() else _ExpectedFile(arms=[], quoted=[], figures=[])
    arms = expected.arms
    figures = [_judge_figure(figure, cells, result.run.provenance) for figure in expected.figures]
    costs = {
        arm.arm: {"usd_per_million_output_tokens": arm.plain_usd_per_million, "tpot_s": arm.plain_tpot_s}
        | {"concurrency": arm.concurrency}
        for arm in arms
        if arm.plain_usd_per_million and not arm.drafted
    }
    return {
        "expectations": [*figures, *(row for arm in arms for row in _of_arm(arm, result))],
        "quoted": expected.quoted,
        "drafts": {arm.arm: arm.speculation for arm in arms if arm.speculation},
        "hardware": {arm.arm: {"instance": arm.instance, "chips": arm.chips} for arm in arms},
        "predicted_cost": costs,
    }


def _judge_figure(figure: _PublishedFigure, cells: RequestsByCell, provenance: str) -> dict[str, Any]:
    """A published figure and whether it was reproduced: the interval of the run against the tolerance."""
    estimate, reason = _estimate(figure, cells)
    low, high = figure.value * (1 - figure.tolerance), figure.value * (1 + figure.tolerance)
    quantity, value, begin, end = QUANTITIES[figure.metric], None, None, None
    verdict, measured = "cannot tell", reason or "too few prompts for an interval"
    if estimate:
        value, begin, end = map(mapped_back, (estimate.mean, estimate.low, estimate.high))
        if begin is not None and end is not None and estimate.clusters >= MIN_PROMPTS:
            inside, outside = low <= begin and end <= high, end < low or high < begin
            verdict = "reproduced" if inside else "not reproduced" if outside else "cannot tell"
            shown = quantity.shown(value, begin, end)
            measured = f"{provenance} {shown[0]} [{', '.join(shown[1:])}]"
    where = f"{', '.join(figure.classes) or 'all classes'}, {Load(concurrency=figure.concurrency).in_words}"
    published = (
        f"published {quantity.shown(figure.value)[0]}, tolerance {figure.tolerance:.0%} ({figure.source})"
    )
    text = f"{VERDICTS[verdict]}: {figure.arm}, {where}: {quantity.label}: {measured}; {published}"
    return {
        **{"arm": figure.arm, "what": figure.metric, "classes": figure.classes},
        **{"concurrency": figure.concurrency, "measured": value, "ci_low": begin, "ci_high": end},
        **{"expected": figure.value, "low": low, "high": high},
        **{"verdict": verdict, "origin": provenance, "text": text},
    }


def _estimate(figure: _PublishedFigure, cells: RequestsByCell) -> tuple[Estimate | None, str]:
    """The mean of the logarithm of a figure over requests, with its interval; or the reason why it is unknown."""
    arm = next((arm for arm in cells.plan.arms if arm.name == figure.arm), None)
    if arm is None:
        return None, "the arm was not measured"
    logs, cluster_ids = [], []
    places = (place for place in cells.places if place.load.concurrency == figure.concurrency)
    for place in (place for place in places if place.class_ in (figure.classes or cells.plan.classes)):
        if (arm.name, place.class_) in cells.made_up:
            return None, f"the emulator makes up the acceptance of {place.class_}"
        own = cells.of(arm, place)
        if figure.metric == "speed_up":
            gains, known = log_gains(cells.pairs((cells.baseline_of(arm), arm), place), TPOT)
        elif (
            figure.metric == TOKENS_PER_STEP.name
            and tokens_per_step_at(cells, arm, place).why_chunks_are_not_steps
        ):
            continue
        else:
            values = own.metrics[figure.metric]
            gains, known = np.log(values[values > 0]), own.cluster_ids.of(values > 0)
        logs.append(gains)
        cluster_ids.append(known)
    if not sum(map(len, logs)):
        return None, "it was not measured"
    together = joined(cluster_ids)
    # All classes of a figure count as one class.
    return of_sample(np.concatenate(logs), replace(together, class_=np.zeros_like(together.class_))), ""


def _of_arm(arm: _ArmForecast, result: Result) -> Iterator[dict[str, Any]]:
    """Whether an arm is within the range of its forecast: its decode step relative to a plain step if it drafts, else its time per token.
    Nothing if a value is unknown."""
    if own := arm.drafted:
        what, rows = "step_over_plain", result.explanations
        expected, low, high = own.step_over_plain, own.step_over_plain_low, own.step_over_plain_high
        known = [(row.concurrency or 0, row.step_time_ratio) for row in rows if row.treatment == arm.arm]
    else:
        what = "plain_tpot_s"
        expected, low, high = arm.plain_tpot_s, arm.plain_tpot_low_s, arm.plain_tpot_high_s
        cells = (cell for cell in result.cells if cell.arm == arm.arm and cell.concurrency and cell.tpot_s)
        known = [(cell.concurrency or 0, cell.tpot_s.p50 if cell.tpot_s else None) for cell in cells]
    largest = max((load for load, value in known if value), default=0)
    values = [value for load, value in known if load == largest and value]
    if not (values and expected and low and high):
        return
    measured, quantity = geometric_mean(values), QUANTITIES[what]
    value, *wanted = quantity.shown(measured, expected, low, high)
    inside = "within the range"
    if not low <= measured <= high:
        way, by = ("above", measured / expected) if measured > high else ("below", expected / measured)
        inside = f"{way} the range, by a factor of {by:.1f} from the forecast"
    forecast = f"forecast from published results {wanted[0]}, range {wanted[1]} to {wanted[2]}: {inside}"
    text = f"{arm.arm}: {quantity.label}: {result.run.provenance} {value}; {forecast}"
    of_arm = {"arm": arm.arm, "what": what, "text": text}
    yield {**of_arm, "measured": measured, "expected": expected, "low": low, "high": high}


def served_by(folder: Path, raw: RawRun) -> str:
    """The engines of a run: as the experiment names them, else as the endpoints say."""
    try:
        engines = [arm.engine for arm in model_in(folder / EXPECTED, _ExpectedFile).arms]
    except UnreadableFile:
        engines = list(raw.sessions[0].owned_by.values())
    return " and ".join(dict.fromkeys(filter(None, engines)))
