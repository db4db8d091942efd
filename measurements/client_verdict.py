"""What the side-by-side measurement of clients comes to: tables, and whether the limits hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from measurements.client_subjects import Found
from measurements.process_tree import Used

TIME_LIMIT_S = 0.003
"""What TTFT and E2E may be off beyond the bare loop's error."""
TPOT_LIMIT = {1: 0.005, 4: 0.005, 64: 0.01}
CPU_OF_BARE, CPU_OF_AIPERF = 1.5, 0.1
PEAK_MB = 60.0
FLAT_MB = 5.0
"""What ten times the requests may add while the arms are loaded."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Peak memory of a long run of this client, MB."""

    requests: int
    loading_mb: float
    """Until the last request had ended."""
    whole_mb: float
    """And until the summary of them all was printed."""
    cpu_s: float

    def line(self) -> str:
        return (
            f"benchmark, {self.requests:6,} requests at 64 at once: peak {self.loading_mb:.1f} MB while loading, "
            f"{self.whole_mb:.1f} MB with the summary, {self.cpu_s:.1f} CPU s"
        )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of one client: median errors over its requests, and what it used."""

    client: str
    arm: str
    concurrency: int
    n: int
    ttft_s: float
    e2e_s: float
    tpot: float
    """Relative."""
    used: Used

    @classmethod
    def of(
        cls,
        client: str,
        arm: str,
        concurrency: int,
        found: Iterable[Found],
        truths: Iterable[Mapping[str, Any]],
        used: Used,
    ) -> Sample:
        """Errors of the requests that both the client and the server know."""
        by_key = {truth["key"]: truth for truth in truths}
        errors = [_errors(one, by_key[one.key]) for one in found if one.key in by_key]
        ttft, e2e, tpot = (median(values) for values in zip(*errors, strict=True))
        return cls(
            client=client,
            arm=arm,
            concurrency=concurrency,
            n=len(errors),
            ttft_s=ttft,
            e2e_s=e2e,
            tpot=tpot,
            used=used,
        )

    def line(self) -> str:
        return (
            f"{self.client:10} {self.arm:6} {self.concurrency:7} {self.n:5} {self.ttft_s * 1000:+9.2f} "
            f"{self.e2e_s * 1000:+9.2f} {self.tpot * 100:+8.3f} {self.used.cpu_s:8.2f} {self.used.peak_mb:8.1f}"
        )


def _errors(found: Found, truth: Mapping[str, Any]) -> tuple[float, float, float]:
    sent_s, tokens = truth["sent_s"], truth["tokens"]
    true_tpot_s = (sent_s[-1] - sent_s[0]) / (sum(tokens) - tokens[0])
    return found.ttft_s - sent_s[0], found.e2e_s - sent_s[-1], found.tpot_s / true_tpot_s - 1


def table(samples: Sequence[Sample]) -> list[str]:
    """Medians over the runs of each client, arm and concurrency."""
    head = "client     arm    at once     n   TTFT ms    E2E ms   TPOT %    CPU s   PSS MB"
    cells = dict.fromkeys((s.concurrency, s.arm, s.client) for s in samples)
    return [head, "-" * len(head), *(_median(samples, *cell).line() for cell in cells)]


def judged(samples: Sequence[Sample], flat: Sequence[Held]) -> list[tuple[bool, str]]:
    """Each limit: whether it holds, and the figures."""
    return [*_exact(samples), *_light(samples), *_flat(flat)]


def _exact(samples: Sequence[Sample]) -> list[tuple[bool, str]]:
    found = []
    for concurrency, limit in TPOT_LIMIT.items():
        ours, bare = (
            [_median(samples, concurrency, arm, client) for arm in ("steady", "bursts")]
            for client in ("benchmark", "bare loop")
        )
        beyond_s = max(
            abs(getattr(one, name)) - abs(getattr(other, name))
            for one, other in zip(ours, bare, strict=True)
            for name in ("ttft_s", "e2e_s")
        )
        tpot = max(abs(one.tpot) for one in ours)
        found.append(
            _said(
                beyond_s <= TIME_LIMIT_S,
                f"{concurrency} at once: TTFT, E2E off by {beyond_s * 1000:+.2f} ms beyond the bare loop (limit +3)",
            )
        )
        found.append(
            _said(tpot <= limit, f"{concurrency} at once: TPOT off by {tpot:.3%} (limit {limit:.1%})")
        )
    return found


def _light(samples: Sequence[Sample]) -> list[tuple[bool, str]]:
    cells = {(sample.concurrency, sample.arm) for sample in samples}
    cpu_s = {
        client: {cell: _median(samples, *cell, client).used.cpu_s for cell in cells}
        for client in {sample.client for sample in samples}
    }
    ours, bare = cpu_s["benchmark"], cpu_s["bare loop"]
    ratio, worst = sum(ours.values()) / sum(bare.values()), max(ours[cell] / bare[cell] for cell in cells)
    text = (
        f"CPU of whole runs: {ratio:.2f} x the bare loop's, {worst:.2f} x at the worst (limit {CPU_OF_BARE})"
    )
    found = [_said(worst <= CPU_OF_BARE, text)]
    if aiperf := cpu_s.get("aiperf"):
        share = sum(ours.values()) / sum(aiperf.values())
        heaviest = max(cells, key=lambda cell: ours[cell] / aiperf[cell])
        at_worst, of_bare = (one[heaviest] / aiperf[heaviest] for one in (ours, bare))
        text = (
            f"CPU of whole runs: {at_worst:.3f} x aiperf's at the worst (limit {CPU_OF_AIPERF}), the bare loop "
            f"{of_bare:.3f} x there; {share:.3f} x all together"
        )
        found.append(_said(at_worst <= CPU_OF_AIPERF, text))
    peak = max(s.used.peak_mb for s in samples if s.client == "benchmark")
    return [*found, _said(peak <= PEAK_MB, f"peak memory {peak:.1f} MB (limit {PEAK_MB:.0f})")]


def _flat(flat: Sequence[Held]) -> list[tuple[bool, str]]:
    if not flat:
        return []
    few, many = flat
    grown = many.loading_mb - few.loading_mb
    text = f"from {few.requests:,} to {many.requests:,} requests: {grown:+.1f} MB while loading (limit +{FLAT_MB:.0f})"
    peak = f"{many.requests:,} requests: peak {many.whole_mb:.1f} MB, summary included (limit {PEAK_MB:.0f})"
    return [_said(grown <= FLAT_MB, text), _said(many.whole_mb <= PEAK_MB, peak)]


def _median(samples: Sequence[Sample], concurrency: int, arm: str, client: str) -> Sample:
    """The runs of one cell as one."""
    of_cell = [s for s in samples if (s.concurrency, s.arm, s.client) == (concurrency, arm, client)]
    return Sample(
        client=client,
        arm=arm,
        concurrency=concurrency,
        n=sum(s.n for s in of_cell),
        ttft_s=median(s.ttft_s for s in of_cell),
        e2e_s=median(s.e2e_s for s in of_cell),
        tpot=median(s.tpot for s in of_cell),
        used=Used(
            median(s.used.cpu_s for s in of_cell),
            median(s.used.wall_s for s in of_cell),
            tuple(sample for s in of_cell for sample in s.used.held),
        ),
    )


def _said(held: bool, text: str) -> tuple[bool, str]:
    return held, f"{'holds ' if held else 'PASSED'}  {text}"
