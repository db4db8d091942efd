"""What was measured against what published results predict, and against published figures that it should meet:
`expected.json` beside the records.

    {"schema": 1, "arms": [{"arm": ..., "plain_tpot_s": ..., "plain_tpot_low_s": ..., "plain_tpot_high_s": ...,
      "drafted": {"step_over_plain": ..., "step_over_plain_low": ..., "step_over_plain_high": ...} | null}], "quoted": [{"text": ..., "source": ...}],
     "figures": [{"arm": ..., "metric": "tpot_s" | "speed_up" | "tokens_per_step", "classes": [...], "concurrency": ..., "value": ...,
       "tolerance": ..., "source": ...}]}

A program that knows the models writes it; this package only compares. A null value: nothing could be expected. Of `figures` no
classes mean all of them, and a figure is met where the interval of what was measured lies within its tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from benchmark.analyse.acceptance.yields import acceptance, known_at
from benchmark.analyse.cells import Cells, Place, sort_out
from benchmark.analyse.comparison import MIN_PROMPTS, log_ratios, mapped_back
from benchmark.analyse.sources import Source, of_sample
from benchmark.analyse.stats import Estimate
from benchmark.analyse.values import request_values
from benchmark.errors import ResultsError
from benchmark.file_access import text_of
from benchmark.measure.journal import RawRun
from benchmark.metrics import TOKENS_PER_STEP, TPOT
from benchmark.plan import Arm

FILE_NAME = "expected.json"
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
    speculation: _Speculation | None = None
    plain_tpot_s: _Value
    plain_tpot_low_s: _Value
    plain_tpot_high_s: _Value
    drafted: _Drafted | None = None

    @property
    def expected(self) -> tuple[float | None, float | None, float | None]:
        """Of its step where it drafts, else of its time per token: the value, and from what to what."""
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
    """`expectations`, `quoted` and `drafts` of the summary of `raw`. Times that no figure asks for are geometric means over the
    classes of the largest load.

    Raises ResultsError for a file of another form.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return {"expectations": [], "quoted": [], "drafts": {}}
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
    }


def _met(figure: _Figure, cells: Cells, provenance: str) -> dict[str, Any]:
    """Whether a published figure was met: its interval against the tolerance."""
    estimate, why = _estimate(figure, cells)
    low, high = figure.value * (1 - figure.tolerance), figure.value * (1 + figure.tolerance)
    name, scale, unit = _NAMES[figure.metric]
    found = [mapped_back(limit) for limit in (estimate.mean, estimate.low, estimate.high)] if estimate else []
    if estimate is None or found[1] is None or found[2] is None or estimate.clusters < MIN_PROMPTS:
        verdict, measured = "cannot tell", why or "too few prompts for an interval"
    else:
        inside, outside = low <= found[1] and found[2] <= high, found[2] < low or high < found[1]
        verdict = "reproduced" if inside else "not reproduced" if outside else "cannot tell"
        limits = " to ".join(f"{limit * scale:.2f}" for limit in found[1:] if limit)
        measured = f"{(found[0] or 0.0) * scale:.2f}{unit} ({limits}) {provenance}"
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
        "text": f"{verdict if provenance == 'measured' else f'{verdict} ({provenance})'}: {name} of {figure.arm}, {where}: "
        f"{measured}; published {figure.value * scale:.2f}{unit}, to be met within {figure.tolerance:.0%} ({figure.source})",
    }


_NAMES = {
    "tpot_s": ("time per output token", 1000.0, " ms"),
    "speed_up": ("speed-up", 1.0, ""),
    "tokens_per_step": ("tokens per step", 1.0, ""),
}
"""What a metric is called, and how it is shown."""


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
    """Of each answer that has the metric."""
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
    inside = "within that range" if low <= measured <= high else "outside that range"
    if arm.drafted:
        what, name, scale = "step_over_plain", f"a step of {arm.arm} takes {measured:.1f} plain ones", 1
    else:
        what, name, scale = (
            "plain_tpot_s",
            f"{arm.arm} decodes in {measured * 1000:.1f} ms a token",
            1000,
        )
        if measured > high:
            inside = (
                f"this arm is {measured / expected:.1f} times slower than its model, chips and length suggest"
            )
        elif measured < low:
            inside = (
                f"this arm is {expected / measured:.1f} times faster than its model, chips and length suggest"
            )
    yield {
        **{"arm": arm.arm, "what": what},
        **{"measured": measured, "expected": expected, "low": low, "high": high},
        "text": f"{name}; {expected * scale:.1f} ({low * scale:.1f} to {high * scale:.1f}) would be expected from published "
        f"results: {inside}",
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
