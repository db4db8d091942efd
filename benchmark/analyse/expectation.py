"""What was measured against what published results let expect: `expected.json` beside the records.

    {"schema": 1, "arms": [{"arm": ..., "plain_tpot_s": ..., "plain_tpot_low_s": ..., "plain_tpot_high_s": ...,
      "drafted": {"step_over_plain": ..., "step_over_plain_low": ..., "step_over_plain_high": ...} | null}], "quoted": [{"text": ..., "source": ...}]}

A program that knows the models writes it; this package only compares. A null value: nothing could be expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from benchmark.errors import ResultsError
from benchmark.file_access import text_of
from benchmark.metrics import TPOT

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


class _Quoted(BaseModel):
    text: str
    source: str


class _File(BaseModel):
    arms: list[_Arm]
    quoted: list[_Quoted] = []


def against_published(folder: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """`expectations`, `quoted` and `drafts` of a summary. Times are geometric means over the classes of the largest load.

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
        "expectations": [entry for arm in said.arms for entry in _of_arm(arm, summary)],
        "quoted": [one.model_dump() for one in said.quoted],
        "drafts": {arm.arm: arm.speculation.model_dump() for arm in said.arms if arm.speculation},
    }


def _of_arm(arm: _Arm, summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if arm.drafted is None:
        tpot_s = _plain_tpot_s(arm.arm, summary)
        if tpot_s and arm.plain_tpot_s and arm.plain_tpot_low_s and arm.plain_tpot_high_s:
            limits = (arm.plain_tpot_s, arm.plain_tpot_low_s, arm.plain_tpot_high_s)
            yield {
                **_entry(arm.arm, "plain_tpot_s", tpot_s, *limits),
                "text": f"{arm.arm} decodes in {tpot_s * 1000:.1f} ms a token; {limits[0] * 1000:.1f} "
                f"({limits[1] * 1000:.1f} to {limits[2] * 1000:.1f}) would be expected from published results: "
                + _plain_verdict(tpot_s, *limits),
            }
        return
    of_step = arm.drafted
    ratio = _step_ratio(arm.arm, summary)
    if ratio and of_step.step_over_plain and of_step.step_over_plain_low and of_step.step_over_plain_high:
        limits = (of_step.step_over_plain, of_step.step_over_plain_low, of_step.step_over_plain_high)
        inside = limits[1] <= ratio <= limits[2]
        yield {
            **_entry(arm.arm, "step_over_plain", ratio, *limits),
            "text": f"a step of {arm.arm} takes {ratio:.1f} plain ones; {limits[0]:.1f} ({limits[1]:.1f} to {limits[2]:.1f}) "
            f"would be expected from published results: {'within that range' if inside else 'outside that range'}",
        }


def _plain_verdict(measured: float, expected: float, low: float, high: float) -> str:
    if measured > high:
        return f"this arm is {measured / expected:.1f} times slower than its model, chips and length suggest"
    if measured < low:
        return f"this arm is {expected / measured:.1f} times faster than its model, chips and length suggest"
    return "within that range"


def _entry(arm: str, what: str, measured: float, expected: float, low: float, high: float) -> dict[str, Any]:
    return {"arm": arm, "what": what, "measured": measured, "expected": expected, "low": low, "high": high}


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
