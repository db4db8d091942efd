"""The cost of drafting: the time of a step by window, from the windows that were timed, on several curves between them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

_MAX_POWER = 2.0
_TINY = 1e-12


class DraftCostModel(NamedTuple):
    """An assumption about how the cost of drafting grows between the windows that were timed."""

    fixed: float | None = None
    """The fixed share of the cost of drafting at the smallest timed window. None takes it from the timed windows: 0 if there is only one, else
    the start of the line through them."""
    power: float | None = None
    """The rest grows with this power of the window. None takes it from the timed windows: a line, unless the two smallest show that later
    drafts cost more."""


LINEAR = DraftCostModel()
FREE = DraftCostModel(fixed=1.0, power=0.5)
"""Only the first draft costs, as in a fused block of drafts; between two timed windows the cost grows with the square root."""
CONVEX = DraftCostModel(fixed=0.0, power=_MAX_POWER)
"""Each draft costs more than the one before. The cost of one measured engine grows with a power of 1.2 to 1.3 (an H200: 5 ms for the first
draft, 9 to 10 ms for each of the next two, 10 to 11 ms after that)."""
BETWEEN = DraftCostModel(fixed=0.5, power=_MAX_POWER)
"""Never the end of a range, but here a window may be best that is best on none of the three: where all is fixed, plain decoding may win."""
CURVES = (LINEAR, FREE, CONVEX, BETWEEN)


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The time of a step by window, one or one of each prompt: exact at the timed windows, monotone between them and beyond."""

    plain_s: float
    timed: Mapping[int, Any]
    """The times of the timed windows, at least one; they never decrease (`step_times`)."""
    cost: DraftCostModel = LINEAR

    def step_s(self, k: int) -> Any:
        """Seconds per step with window `k`; 0 is plain decoding."""
        if k == 0:
            return self.plain_s
        if k in self.timed:
            return self.timed[k]
        windows, (fixed, power) = list(self.timed), self._as_timed
        if k < windows[0] or len(windows) == 1:
            low, high = 0, windows[0]
            # A known fixed share does not grow, and later drafts cost no less.
            if self.cost.power is not None:
                power = 1 + (max(self.cost.power, 1.0) - 1) * (1 - fixed)
            fixed = fixed if self.cost.fixed is None else self.cost.fixed
        else:
            right = min(bisect_left(windows, k), len(windows) - 1)
            low, high, fixed = windows[right - 1], windows[right], 0.0
            power = self.cost.power or (power if right == 1 else 1.0)
        low_s, high_s = self.step_s(low), self.step_s(high)
        begin, here, end = (np.power(float(window), power) for window in (low, k, high))
        grown = low_s + (high_s - low_s) * (fixed + (1 - fixed) * (here - begin) / (end - begin))
        return np.where(high_s > low_s, grown, high_s)

    @cached_property
    def _as_timed(self) -> tuple[Any, Any]:
        """Fixed share and power from the two smallest timed windows. The fixed share is where the line through them begins, relative to the
        cost that the first of them adds. The power is that of the growth from plain decoding over both, from 1 to 2."""
        if len(self.timed) == 1:
            return 0.0, 1.0
        first, second, *_ = self.timed
        first_s, second_s = (np.maximum(self.timed[k] - self.plain_s, _TINY) for k in (first, second))
        begins = 1 - first * (second_s - first_s) / (second - first) / first_s
        power = np.log(second_s / first_s) / math.log(second / first)
        return np.maximum(begins, 0.0), np.clip(power, 1.0, _MAX_POWER)


def step_times(points: Mapping[int, Any]) -> StepTimes:
    """Step times from measurements by window, including 0 (plain decoding).

    A step does not get shorter with a larger window. If a measurement says so, it and its neighbour get their mean (isotonic regression).
    """
    windows = sorted(k for k in points if k)
    seconds = np.stack([np.asarray(points[k], float) for k in windows])
    if (np.diff(seconds, axis=0) < 0).any():
        from scipy.optimize import isotonic_regression  # takes long to import, and is seldom needed

        seconds = np.apply_along_axis(lambda own: isotonic_regression(own).x, 0, seconds)
    return StepTimes(plain_s=float(points[0]), timed=dict(zip(windows, seconds, strict=True)))
