"""Predict the time of a decode step on Trainium2, as a range that was compared with every published result.

    plain step = weights read / bandwidth + seconds per layer x layers + factor x compiled key-value cache / bandwidth

The two constants are fitted to the table of published results. For the range, every model is left out once and forecast from the
others; the range is that of measured over forecast. Nothing is forecast beyond the rows of the fit: a `PlainStep` there has a bound
and the published measurements, and no likely value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import ceil, floor
from typing import NamedTuple

from trnspec.core.words import count
from trnspec.experiment.catalogue.models import BYTES_PER_VALUE, Shape
from trnspec.experiment.catalogue.published import (
    DRAFTED,
    PLAIN,
    KnownSlowdown,
    Plain,
)

BANDWIDTH = 2.9e12
"""Bytes per second of one Trainium2 chip's memory
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/trainium2.html)."""
MAX_BATCH, MAX_CONTEXT = 4, 12_800
"""Maximum sequences and tokens compiled into a step, among the rows of the fit."""
BEYOND: dict[KnownSlowdown, str] = {
    "host sampling": "tokens are sampled on the host",
    "synchronous": "the native plugin schedules a step only when the one before it has ended",
    "no kernels": "the graph has no decode kernels",
    "large batch": f"more than {MAX_BATCH} sequences are compiled into a step",
    "long context": f"more than {MAX_CONTEXT:,} tokens are compiled into a step",
    "unexplained": "no cause is published",
}

_NOISE, _ROUNDS = 0.03, 100
"""Errors below this share of a time count as equal, because published figures are rounded; and the maximum rounds of the fit."""
_MODES: dict[str, tuple[int, int, dict[int, tuple[int, ...]], str]] = {
    "fused": (1, 15, {1: (), 2: (), 3: (), 4: ()}, ""),
    "eagle3": (1, 3, {1: (1, 2), 2: (1, 2)}, ""),
    "dflash": (
        9,
        15,
        {1: (1,), 4: (4,)},
        "over plain steps that are scheduled synchronously, which hide a part of a block's cost",
    ),
}
"""Modes with published steps: minimum and maximum k, the published loads to combine for each number of concurrent requests, and why
their range is imprecise. For a fused step the passes of its draft are forecast; 15 is the largest window that was tried (AWS Machine Learning Blog,
2026-04-15). For heads only ratios are known; EAGLE3's loads of 1 and 2 form one range, because each has one or two configurations."""


class PlainEngine(NamedTuple):
    """The settings of a plain engine that its step time depends on."""

    shape: Shape
    chips: float
    batch: int
    compiled_tokens: int

    @property
    def bound_s(self) -> float:
        """Seconds to read the weights once: no step of one token is faster."""
        return self.shape.read_parameters * BYTES_PER_VALUE / (self.chips * BANDWIDTH)

    @property
    def cache_s(self) -> float:
        """Seconds to read the compiled key-value cache once."""
        cache_bytes = self.batch * self.compiled_tokens * self.shape.kv_values_per_token * BYTES_PER_VALUE
        return cache_bytes / (self.chips * BANDWIDTH)


class Fit(NamedTuple):
    """The two fitted constants."""

    layer_s: float
    cache_factor: float

    def step_s(self, configuration: PlainEngine) -> float:
        """Seconds of a plain step."""
        return (
            configuration.bound_s
            + self.layer_s * configuration.shape.layers
            + self.cache_factor * configuration.cache_s
        )


class PlainStep(NamedTuple):
    """Seconds of a step that yields one token."""

    bound_s: float
    likely_s: float | None
    """`None` outside the published range."""
    low_s: float
    high_s: float | None
    why: str = ""
    """Why the likely value is missing, and what was measured there."""
    rows: tuple[str, ...] = ()
    """The published results that were used."""


class DraftedStep(NamedTuple):
    """The ratio of a drafted step to a plain step, which is also the break-even number of tokens per step."""

    likely: float | None
    """`None` if nothing is published; the middle of the range if only ratios are published."""
    low: float
    high: float | None
    most_tokens: int
    """Maximum tokens that a step yields."""
    why: str = ""
    rows: tuple[str, ...] = ()

    @property
    def ceiling(self) -> float | None:
        """Likely speed-up when every draft is accepted."""
        return self.most_tokens / self.likely if self.likely else None


def of_row(row: Plain) -> PlainEngine:
    """Return the configuration of a published result."""
    return PlainEngine(
        shape=row.model.shape, chips=row.chips, batch=row.batch, compiled_tokens=row.compiled_tokens
    )


def fit(rows: Sequence[Plain]) -> Fit:
    """Return the constants with the smallest relative errors, models weighted equally (iteratively reweighted least squares).

    An error counts by its size, not by its square, down to `_NOISE`, so that one odd row moves little.
    """
    of_shape = Counter(row.model.shape for row in rows)
    lines = []  # each row as shares of its time: layers, cache, the rest that these two must explain, and its weight
    for row in rows:
        own, t = of_row(row), row.tpot_s
        lines.append(
            (own.shape.layers / t, own.cache_s / t, 1 - own.bound_s / t, 1 / of_shape[row.model.shape])
        )
    layer_s, cache_factor = 0.0, 0.0
    for _ in range(_ROUNDS):
        xx = xy = yy = xz = yz = 0.0
        for x, y, z, weight in lines:
            share = weight / max(abs(x * layer_s + y * cache_factor - z), _NOISE)
            xx, xy, yy = xx + share * x * x, xy + share * x * y, yy + share * y * y
            xz, yz = xz + share * x * z, yz + share * y * z
        determinant, before = xx * yy - xy * xy, layer_s
        layer_s, cache_factor = (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant
        if math.isclose(before, layer_s, rel_tol=1e-9):
            break
    return Fit(layer_s=layer_s, cache_factor=cache_factor)


def left_out(rows: Sequence[Plain]) -> dict[str, float]:
    """Return measured over forecast by row; each forecast uses only the rows of models with another shape."""
    ratios: dict[str, float] = {}
    for shape in dict.fromkeys(row.model.shape for row in rows):
        others = fit([row for row in rows if row.model.shape != shape])
        own = (row for row in rows if row.model.shape == shape)
        ratios |= {row.row: row.tpot_s / others.step_s(of_row(row)) for row in own}
    return ratios


class Forecaster(NamedTuple):
    """A fit and its range."""

    fit: Fit
    low: float
    high: float
    rows: tuple[str, ...]

    def plain(self, own: PlainEngine, known_slowdown: KnownSlowdown | None = None) -> PlainStep:
        """Return a range inside the published settings, and only a bound outside."""
        beyond: list[KnownSlowdown] = [known_slowdown] if known_slowdown else []
        if not known_slowdown and own.batch > MAX_BATCH:
            beyond.append("large batch")
        if not known_slowdown and own.compiled_tokens > MAX_CONTEXT:
            beyond.append("long context")
        if beyond:
            why = "; ".join(f"{BEYOND[one]}: {self._measured_beyond(one)}" for one in beyond)
            rows = tuple(row.row for row in PLAIN if row.known_slowdown in beyond)
            bound_s = own.bound_s
            return PlainStep(bound_s=bound_s, likely_s=None, low_s=bound_s, high_s=None, why=why, rows=rows)
        likely = self.fit.step_s(own)
        return PlainStep(
            bound_s=own.bound_s,
            likely_s=likely,
            low_s=max(own.bound_s, likely * self.low),
            high_s=likely * self.high,
            rows=self.rows,
        )

    def _measured_beyond(self, known_slowdown: KnownSlowdown) -> str:
        """Return the published results with this slowdown, compared with the formula."""
        rows = [row for row in PLAIN if row.known_slowdown == known_slowdown]
        if not rows:
            return "no result is published"
        formula = [(row.tpot_s, self.fit.step_s(of_row(row))) for row in rows]
        times, ms = sorted(t / f for t, f in formula), sorted((t - f) * 1000 for t, f in formula)
        ends = [0] if len(rows) == 1 else [0, -1]
        span = " to ".join(f"{times[end]:.1f}" for end in ends)
        excess = " to ".join(f"{ms[end]:+.0f}" for end in ends)
        named = ", ".join(dict.fromkeys(f"{row.model.name} at TP {row.tensor_parallel}" for row in rows))
        return f"{count(len(rows), 'published result')}: {span} times the formula ({excess} ms; {named}); too few for a range"

    def drafted(
        self,
        target: PlainEngine,
        *,
        mode: str,
        draft: Shape,
        num_speculative_tokens: int,
        at_once: int,
        known_slowdown: KnownSlowdown | None = None,
    ) -> DraftedStep:
        """Return the cost of a drafted step in plain steps, with `at_once` concurrent requests."""
        k, fused, plain = num_speculative_tokens, mode == "fused", self.plain(target, known_slowdown)
        unknown = DraftedStep(likely=None, low=1.0, high=None, most_tokens=k if fused else k + 1)
        if plain.likely_s is None:
            return unknown._replace(why=plain.why, rows=plain.rows)
        minimum, maximum, groups, why_imprecise = _MODES.get(mode, (1, 0, {}, ""))
        rows = [
            row
            for row in DRAFTED
            if row.mode == mode and (fused or row.concurrency in groups.get(at_once, ()))
        ]
        if not rows or at_once not in groups or not minimum <= k <= maximum:
            return unknown._replace(why=_published_for(mode))
        used = tuple(row.row for row in rows)
        if not fused:
            ratios = sorted(row.most_step_ratio for row in rows)
            low, high = floor(ratios[0] * 10) / 10, ceil(ratios[-1] * 10) / 10
            why = f"mode {mode}: the middle of a range {why_imprecise}" if why_imprecise else ""
            return unknown._replace(likely=(low + high) / 2, low=low, high=high, why=why, rows=used)
        # k passes of the draft and one of the target: a pass costs at least reading its weights, likely as much as alone.
        pass_of = target._replace(shape=draft)
        alone = self.plain(pass_of, known_slowdown)
        if alone.likely_s is None or alone.high_s is None:
            return unknown._replace(why=plain.why, rows=plain.rows)
        return unknown._replace(
            likely=1 + k * alone.likely_s / plain.likely_s,
            low=1 + k * pass_of.bound_s / plain.likely_s,
            high=1 + k * alone.high_s / plain.likely_s,
            rows=used + plain.rows,
        )


def _published_for(mode: str) -> str:
    """Return the windows and loads for which steps of a mode are published."""
    if mode not in _MODES:
        return f"no step of mode {mode} is published"
    minimum, maximum, groups, _ = _MODES[mode]
    if mode == "fused":
        return (
            f"mode {mode} is published for k up to {maximum} and up to {max(groups)} concurrent requests only"
        )
    loads = " or ".join(map(str, groups))
    return f"mode {mode} is published for k from {minimum} to {maximum} and {loads} concurrent requests only"


def forecaster(rows: Iterable[Plain] = PLAIN) -> Forecaster:
    """Return a forecaster that is fitted to the rows without a known slowdown. Its range comes from leaving out each model."""
    healthy = [row for row in rows if row.known_slowdown is None]
    ratios = left_out(healthy).values()
    return Forecaster(
        fit=fit(healthy), low=min(ratios), high=max(ratios), rows=tuple(row.row for row in healthy)
    )


@cache
def published_forecaster() -> Forecaster:
    """Return the forecaster of all published rows, fitted once."""
    return forecaster()


def step_lines(plain: PlainStep, drafted: DraftedStep | None) -> Iterator[str]:
    """Yield the steps as lines."""
    bound_ms = plain.bound_s * 1000
    if plain.likely_s is None or plain.high_s is None:
        yield f"PREDICTED: a plain step takes at least {bound_ms:.2f} ms; no value: {plain.why}"
    else:
        yield (
            f"PREDICTED: the fitted formula gives a plain step of {plain.likely_s * 1000:.2f} ms ({plain.low_s * 1000:.2f} to {plain.high_s * 1000:.2f}), "
            f"{plain.likely_s / plain.bound_s:.1f} times the {bound_ms:.2f} ms that reading the weights takes"
        )
    if drafted is None:
        return
    if drafted.likely is None or drafted.high is None:
        yield f"PREDICTED: no value for the drafted step: {drafted.why}"
    else:
        yield (
            f"PREDICTED: a drafted step takes {drafted.likely:.2f} times as long as a plain one ({drafted.low:.2f} to {drafted.high:.2f}). "
            f"Drafting pays above {drafted.likely:.2f} tokens per step. The maximum is {drafted.most_tokens}: {drafted.ceiling:.2f} times as fast"  # pyrefly: ignore[invalid-format-spec]  # what is likely has one
        )
