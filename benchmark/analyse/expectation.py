"""A run against what published results predict, and against published figures that it should meet: `expected.json` beside the
records. It also says on which chips each arm is.

    {"schema": 1, "arms": [{"arm": ..., "instance": ..., "chips": ..., "plain_tpot_s": ..., "plain_tpot_low_s": ..., "plain_tpot_high_s": ...,
      "drafted": {"step_over_plain": ..., "step_over_plain_low": ..., "step_over_plain_high": ...} | null}], "quoted": [{"text": ..., "source": ...}],
     "figures": [{"arm": ..., "metric": "tpot_s" | "speed_up" | "tokens_per_step", "classes": [...], "concurrency": ..., "value": ...,
       "tolerance": ..., "source": ...}]}

A program that knows the models writes it; this package only compares. A null value: nothing could be expected. A figure without
classes is about all of them, and it is met where the whole interval of the run is within its tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from benchmark.analyse.acceptance.yields import acceptance, known_at
from benchmark.analyse.cells import Cells, Place, sort_out
from benchmark.analyse.comparison import MIN_PROMPTS, log_ratios, mapped_back
from benchmark.analyse.sources import Source, of_sample
from benchmark.analyse.stats import Estimate
from benchmark.analyse.values import request_values
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.metrics import TOKENS_PER_STEP, TPOT
from benchmark.plan import Arm
from core.reading import text_of

FILE_NAME = "expected.json"
CIRCULAR = "not compared, because the emulator's times are fitted to the same published results: the comparison would be circular."
"""What an emulated run says instead of a comparison."""


class Quantity(NamedTuple):
    """What is compared, as every text and picture calls it."""

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
        """Values in the unit, without its name."""
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
VERDICTS = {
    "reproduced": "reproduced",
    "not reproduced": "not reproduced",
    "cannot tell": "inconclusive",
}
"""The words of each code of the summary."""
_Value = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class _Drafted(BaseModel):
    step_over_plain: _Value
    step_over_plain_low: _Value
    step_over_plain_high: _Value


class _Speculation(BaseModel):
    mode: str
    draft: str


class _Arm(BaseModel):
    arm: str
    instance: str | None = None
    chips: Annotated[int, Field(gt=0)] | None = None
    speculation: _Speculation | None = None
    plain_tpot_s: _Value
    plain_tpot_low_s: _Value
    plain_tpot_high_s: _Value
    drafted: _Drafted | None = None
    engine: str | None = None
    at_once: int | None = None
    plain_usd_per_million: _Value = None

    @property
    def expected(self) -> tuple[float | None, float | None, float | None]:
        """The value and the ends of its range: of the step where the arm drafts, else of the time per token."""
        if own := self.drafted:
            return own.step_over_plain, own.step_over_plain_low, own.step_over_plain_high
        return self.plain_tpot_s, self.plain_tpot_low_s, self.plain_tpot_high_s


class _Quoted(BaseModel):
    text: str
    source: str


class _Figure(BaseModel):
    arm: str
    metric: Literal["tpot_s", "speed_up", "tokens_per_step"]
    classes: list[str]
    concurrency: int
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    tolerance: Annotated[float, Field(gt=0, lt=1)]
    source: str


class _File(BaseModel):
    arms: list[_Arm]
    quoted: list[_Quoted] = []
    figures: list[_Figure] = []


def against_published(folder: Path, summary: Mapping[str, Any], raw: RawRun) -> dict[str, Any]:
    """`expectations`, `quoted`, `drafts` and `hardware` of the summary of `raw`. Times that no figure asks for are geometric means
    over the classes of the largest load.

    Raises ResultsError for a file that is not such a file.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return {"expectations": [], "quoted": [], "drafts": {}, "hardware": {}, "predicted_cost": {}}
    try:
        said = _File.model_validate_json(text_of(path))
    except (ValueError, ValidationError) as error:
        why = str(error).splitlines()[0]
        raise ResultsError(f"{path}: is not an expectation ({why}); bring it again, or remove it") from None
    return {
        "expectations": [
            *(_met(figure, sort_out(raw), summary["run"]["provenance"]) for figure in said.figures),
            *(entry for arm in said.arms for entry in _of_arm(arm, summary)),
        ],
        "quoted": [one.model_dump() for one in said.quoted],
        "drafts": {arm.arm: arm.speculation.model_dump() for arm in said.arms if arm.speculation},
        "hardware": {
            arm.arm: {"instance": arm.instance, "chips": arm.chips}
            for arm in said.arms
            if arm.instance and arm.chips
        },
        "predicted_cost": {
            arm.arm: {
                "usd_per_million_output_tokens": arm.plain_usd_per_million,
                "tpot_s": arm.plain_tpot_s,
                "concurrency": arm.at_once,
            }
            for arm in said.arms
            if arm.plain_usd_per_million and not arm.drafted
        },
    }


def _met(figure: _Figure, cells: Cells, provenance: str) -> dict[str, Any]:
    """Whether a published figure was met: its interval against the tolerance."""
    estimate, why = _estimate(figure, cells)
    low, high = figure.value * (1 - figure.tolerance), figure.value * (1 + figure.tolerance)
    quantity = QUANTITIES[figure.metric]
    found = [mapped_back(limit) for limit in (estimate.mean, estimate.low, estimate.high)] if estimate else []
    if estimate is None or found[1] is None or found[2] is None or estimate.clusters < MIN_PROMPTS:
        verdict, measured = "cannot tell", why or "too few prompts for an interval"
    else:
        inside, outside = low <= found[1] and found[2] <= high, found[2] < low or high < found[1]
        verdict = "reproduced" if inside else "not reproduced" if outside else "cannot tell"
        value, *limits = quantity.shown(*found)
        measured = f"{provenance} {value} [{', '.join(limits)}]"
    where = f"{', '.join(figure.classes) or 'all classes'}, {figure.concurrency} at a time"
    return {
        "arm": figure.arm,
        "what": figure.metric,
        "classes": figure.classes,
        "concurrency": figure.concurrency,
        **dict(zip(("measured", "ci_low", "ci_high"), found or (None, None, None), strict=True)),
        "expected": figure.value,
        "low": low,
        "high": high,
        "verdict": verdict,
        "origin": provenance,
        "text": f"{VERDICTS[verdict]}: {figure.arm}, {where}: {quantity.label}: {measured}; "
        f"published {quantity.shown(figure.value)[0]}, tolerance {figure.tolerance:.0%} ({figure.source})",
    }


def _estimate(figure: _Figure, cells: Cells) -> tuple[Estimate | None, str]:
    """The mean of a figure's logarithm over requests, with its interval; or why it is not known."""
    arm = next((arm for arm in cells.plan.arms if arm.name == figure.arm), None)
    if arm is None:
        return None, "the arm was not measured"
    sample: list[tuple[Source, float]] = []
    for place in cells.places:
        if place.load.concurrency != figure.concurrency or (
            figure.classes and place.class_ not in figure.classes
        ):
            continue
        if (arm.name, place.class_) in cells.made_up:
            return None, f"the emulator makes up the acceptance of {place.class_}"
        if figure.metric == "speed_up":
            arms = (cells.baseline_of(arm), arm)
            sample += log_ratios(arms, cells.pairs(arms, place), cells.source)[TPOT.name]
        else:
            sample += _logs(figure.metric, cells, arm, place)
    # All classes of a figure are one.
    together = [
        (source._replace(class_="", prompt=f"{source.class_} {source.prompt}"), value)
        for source, value in sample
    ]
    return (of_sample(together), "") if together else (None, "it was not measured")


def _logs(metric: str, cells: Cells, arm: Arm, place: Place) -> list[tuple[Source, float]]:
    """Logarithms of the metric, of each answer that has it."""
    records = cells.answered(arm, place)
    if metric == TOKENS_PER_STEP.name and acceptance(arm, records, known_at(cells, arm, place))["caution"]:
        return []  # chunks are not steps there
    values = ((one, request_values(one, arm.max_tokens_per_step).get(metric)) for one in records)
    return [(cells.source(one), math.log(value)) for one, value in values if value]


def _of_arm(arm: _Arm, summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Nothing where a value is not known."""
    measured = (_step_ratio if arm.drafted else _plain_tpot_s)(arm.arm, summary)
    expected, low, high = arm.expected
    if not (measured and expected and low and high):
        return
    what = "step_over_plain" if arm.drafted else "plain_tpot_s"
    quantity = QUANTITIES[what]
    value, *wanted = quantity.shown(measured, expected, low, high)
    inside = "within the range"
    if not low <= measured <= high:
        way, by = ("above", measured / expected) if measured > high else ("below", expected / measured)
        inside = f"{way} the range, by a factor of {by:.1f} from the forecast"
    provenance = summary["run"]["provenance"]
    yield {
        **{"arm": arm.arm, "what": what},
        **{"measured": measured, "expected": expected, "low": low, "high": high},
        "text": f"{arm.arm}: {quantity.label}: {provenance} {value}; forecast from published results {wanted[0]}, "
        f"range {wanted[1]} to {wanted[2]}: {inside}",
    }


def _plain_tpot_s(arm: str, summary: Mapping[str, Any]) -> float | None:
    own = [
        cell for cell in summary["cells"] if cell["arm"] == arm and cell["concurrency"] and cell[TPOT.name]
    ]
    most = max((cell["concurrency"] for cell in own), default=None)
    return _geometric(cell[TPOT.name]["p50"] for cell in own if cell["concurrency"] == most)


def _step_ratio(arm: str, summary: Mapping[str, Any]) -> float | None:
    own = [one for one in summary["explanations"] if one["treatment"] == arm and one["step_time_ratio"]]
    most = max((one["concurrency"] or 0 for one in own), default=None)
    return _geometric(one["step_time_ratio"] for one in own if (one["concurrency"] or 0) == most)


def _geometric(values: Iterator[float]) -> float | None:
    found = [value for value in values if value > 0]
    return math.exp(math.fsum(map(math.log, found)) / len(found)) if found else None


def served_by(folder: Path, raw: RawRun) -> str:
    """The engines of a run: as the experiment names them, else as the endpoints say."""
    try:
        said = [arm.engine for arm in _File.model_validate_json(text_of(folder / FILE_NAME)).arms]
    except (OSError, ValueError):
        said = list(raw.sittings[0].owned_by.values())
    return " and ".join(dict.fromkeys(filter(None, said)))
