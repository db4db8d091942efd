"""What a decode step on Trainium2 is expected to take, as a range that every published result has been held against.

    plain step = weights read / bandwidth + seconds a layer x layers + factor x compiled key-value cache / bandwidth

The two constants are fitted to the table of published results, and so is the range: every model is left out once, forecast from the
others, and the range is that of measured over forecast. Nothing is forecast beyond what the rows of the fit cover: a
`PlainStep` there has a bound and what was measured beyond it, and no likely value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, floor

from core.words import count
from experiment.catalogue.models import BYTES_PER_VALUE, Shape
from experiment.catalogue.published import DRAFTED, PLAIN, Handicap, Plain

BANDWIDTH = 2.9e12
"""Bytes a second of one Trainium2 chip's memory
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/trainium2.html)."""
LARGEST_BATCH, LONGEST_CONTEXT = 4, 12_800
"""Sequences and tokens compiled into a step, up to which rows of the fit were published."""
BEYOND: dict[Handicap, str] = {
    "host sampling": "tokens are sampled on the host",
    "synchronous": "the native plugin schedules a step only when the one before it has ended",
    "no kernels": "the graph has no decode kernels",
    "large batch": f"more than {LARGEST_BATCH} sequences are compiled into a step",
    "long context": f"more than {LONGEST_CONTEXT:,} tokens are compiled into a step",
    "unexplained": "no cause is published",
}

_NOISE, _ROUNDS = 0.03, 100
"""Share of a time up to which two errors are alike, about what published figures are rounded to; the most rounds until nothing moves."""
_HEADS: dict[str, tuple[int, int, dict[int, tuple[int, ...]], str]] = {
    "eagle3": (1, 3, {1: (1, 2), 2: (1, 2)}, ""),
    "dflash": (
        9,
        15,
        {1: (1,), 4: (4,)},
        "over plain steps that are scheduled synchronously, which hide a part of a block's cost",
    ),
}
"""Modes of which only ratios are known: smallest and largest k, by requests at once the published loads that are taken together, a
caution. EAGLE3's loads of 1 and 2 are one range, because each of them has one configuration or two."""
_MOST_FUSED_WINDOW = 15
"""The largest window that was tried (AWS Machine Learning Blog, 2026-04-15)."""
_MOST_FUSED_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A plain engine as far as its step depends on it."""

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


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The two constants."""

    layer_s: float
    cache_factor: float

    def step_s(self, configuration: Configuration) -> float:
        """Seconds of a plain step."""
        return (
            configuration.bound_s
            + self.layer_s * configuration.shape.layers
            + self.cache_factor * configuration.cache_s
        )


@dataclass(frozen=True, kw_only=True)
class PlainStep:
    """Seconds of a step that yields one token."""

    bound_s: float
    likely_s: float | None
    """`None` beyond what is published."""
    low_s: float
    high_s: float | None
    why: str = ""
    """Why there is no likely value, and what was measured there."""
    rows: tuple[str, ...] = ()
    """Published results that it rests on."""


@dataclass(frozen=True, kw_only=True)
class DraftedStep:
    """A step with drafts over a plain one; also the tokens a step at which drafting breaks even."""

    likely: float | None
    """`None` where nothing is published; the middle of the range where only ratios are."""
    low: float
    high: float | None
    most_tokens: int
    """Tokens that come out of a step at most."""
    why: str = ""
    rows: tuple[str, ...] = ()

    @property
    def ceiling(self) -> float | None:
        """Likely speed-up when every draft is accepted."""
        return self.most_tokens / self.likely if self.likely else None


def of_row(row: Plain) -> Configuration:
    """The configuration of a published result."""
    return Configuration(
        shape=row.model.shape, chips=row.chips, batch=row.batch, compiled_tokens=row.compiled_tokens
    )


def fit(rows: Sequence[Plain]) -> Fit:
    """The constants with the least relative errors, models weighted equally (iteratively reweighted least squares).

    An error counts by its size, not by its square, down to `_NOISE`, so that one odd row moves little.
    """
    count = Counter(row.model.shape for row in rows)
    lines = []  # each row in parts of its own time: layers, cache, what the two have to explain, and its weight
    for row in rows:
        own, weight = of_row(row), 1 / count[row.model.shape]
        lines.append(
            (own.shape.layers / row.tpot_s, own.cache_s / row.tpot_s, 1 - own.bound_s / row.tpot_s, weight)
        )
    layer_s, cache_factor = 0.0, 0.0
    for _ in range(_ROUNDS):
        xx = xy = yy = xz = yz = 0.0
        for x, y, z, weight in lines:
            share = weight / max(abs(x * layer_s + y * cache_factor - z), _NOISE)
            xx, xy, yy = xx + share * x * x, xy + share * x * y, yy + share * y * y
            xz, yz = xz + share * x * z, yz + share * y * z
        determinant = xx * yy - xy * xy
        before = layer_s
        layer_s, cache_factor = (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant
        if math.isclose(before, layer_s, rel_tol=1e-9):
            break
    return Fit(layer_s=layer_s, cache_factor=cache_factor)


def left_out(rows: Sequence[Plain]) -> dict[str, float]:
    """Measured over forecast by row, each forecast by the rows of all models of another shape."""
    found: dict[str, float] = {}
    for shape in dict.fromkeys(row.model.shape for row in rows):
        others = fit([row for row in rows if row.model.shape != shape])
        found |= {
            row.row: row.tpot_s / others.step_s(of_row(row)) for row in rows if row.model.shape == shape
        }
    return found


@dataclass(frozen=True, kw_only=True)
class Forecaster:
    """A fit and the range that its rows give it."""

    fit: Fit
    low: float
    high: float
    rows: tuple[str, ...]

    def plain(self, configuration: Configuration, handicap: Handicap | None = None) -> PlainStep:
        """A range inside what is published, a bound outside."""
        beyond = [handicap] if handicap else list(_beyond(configuration))
        if beyond:
            return PlainStep(
                bound_s=configuration.bound_s,
                likely_s=None,
                low_s=configuration.bound_s,
                high_s=None,
                why="; ".join(f"{BEYOND[one]}: {self._measured_beyond(one)}" for one in beyond),
                rows=tuple(row.row for row in PLAIN if row.handicap in beyond),
            )
        likely = self.fit.step_s(configuration)
        return PlainStep(
            bound_s=configuration.bound_s,
            likely_s=likely,
            low_s=max(configuration.bound_s, likely * self.low),
            high_s=likely * self.high,
            rows=self.rows,
        )

    def _measured_beyond(self, handicap: Handicap) -> str:
        """What was published there, against what the formula of the others gives."""
        rows = [row for row in PLAIN if row.handicap == handicap]
        if not rows:
            return "no result is published"
        excess = sorted((row.tpot_s - self.fit.step_s(of_row(row))) * 1000 for row in rows)
        times = sorted(row.tpot_s / self.fit.step_s(of_row(row)) for row in rows)
        span = f"{times[0]:.1f}" if len(rows) == 1 else f"{times[0]:.1f} to {times[-1]:.1f}"
        ms = f"{excess[0]:+.0f}" if len(rows) == 1 else f"{excess[0]:+.0f} to {excess[-1]:+.0f}"
        named = ", ".join(dict.fromkeys(f"{row.model.name} at TP {row.tensor_parallel}" for row in rows))
        return f"{count(len(rows), 'published result')}: {span} times the formula ({ms} ms; {named}); too few for a range"

    def drafted(
        self,
        target: Configuration,
        *,
        mode: str,
        draft: Shape,
        num_speculative_tokens: int,
        at_once: int,
        handicap: Handicap | None = None,
    ) -> DraftedStep:
        """What a drafted step costs in plain steps, with `at_once` requests under way."""
        k = num_speculative_tokens
        if mode == "fused":
            return self._fused(target, draft, k, at_once, handicap)
        unknown = DraftedStep(likely=None, low=1.0, high=None, most_tokens=k + 1)
        plain = self.plain(target, handicap)
        if plain.likely_s is None:
            return replace(unknown, why=plain.why, rows=plain.rows)
        least, most, groups, caution = _HEADS.get(mode, (1, 0, {}, ""))
        rows = [r for r in DRAFTED if r.mode == mode and r.concurrency in groups.get(at_once, ())]
        if not rows or not least <= k <= most:
            loads = " or ".join(map(str, groups))
            where = (
                f"for k from {least} to {most} and {loads} requests at once only" if groups else "not at all"
            )
            return replace(unknown, why=f"mode {mode} is published {where}")
        ratios = sorted(row.most_step_ratio for row in rows)
        low, high = floor(ratios[0] * 10) / 10, ceil(ratios[-1] * 10) / 10
        return DraftedStep(
            likely=(low + high) / 2,
            low=low,
            high=high,
            most_tokens=k + 1,
            why=f"mode {mode}: the middle of a range {caution}".rstrip() if caution else "",
            rows=tuple(row.row for row in rows),
        )

    def _fused(
        self, target: Configuration, draft: Shape, k: int, at_once: int, handicap: Handicap | None
    ) -> DraftedStep:
        """k passes of the draft and one of the target: a pass costs at least its weights, likely what it would cost alone."""
        pass_of = Configuration(
            shape=draft, chips=target.chips, batch=target.batch, compiled_tokens=target.compiled_tokens
        )
        plain, alone = self.plain(target, handicap), self.plain(pass_of, handicap)
        if plain.likely_s is None or alone.likely_s is None or alone.high_s is None:
            return DraftedStep(likely=None, low=1.0, high=None, most_tokens=k, why=plain.why, rows=plain.rows)
        if at_once > _MOST_FUSED_AT_ONCE or k > _MOST_FUSED_WINDOW:
            why = f"mode fused is published for k up to {_MOST_FUSED_WINDOW} and up to {_MOST_FUSED_AT_ONCE} requests at once only"
            return DraftedStep(likely=None, low=1.0, high=None, most_tokens=k, why=why)
        return DraftedStep(
            likely=1 + k * alone.likely_s / plain.likely_s,
            low=1 + k * pass_of.bound_s / plain.likely_s,
            high=1 + k * alone.high_s / plain.likely_s,
            most_tokens=k,
            rows=tuple(r.row for r in DRAFTED if r.mode == "fused") + plain.rows,
        )


def forecaster(rows: Iterable[Plain] = PLAIN) -> Forecaster:
    """Fitted to the rows without a handicap. The range spans what leaving out each model shows."""
    healthy = [row for row in rows if row.handicap is None]
    ratios = left_out(healthy).values()
    return Forecaster(
        fit=fit(healthy), low=min(ratios), high=max(ratios), rows=tuple(row.row for row in healthy)
    )


@cache
def published_forecaster() -> Forecaster:
    """That of all published rows, fitted once."""
    return forecaster()


def _beyond(configuration: Configuration) -> Iterator[Handicap]:
    if configuration.batch > LARGEST_BATCH:
        yield "large batch"
    if configuration.compiled_tokens > LONGEST_CONTEXT:
        yield "long context"
