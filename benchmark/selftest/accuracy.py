"""What the client measured against what the server did: the error of each request, then its median.

The server's own lateness cancels: the truth is when its chunks left, not when they were due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmark.measure.records import RequestRecord

CALM = 4
"""Up to so many requests in flight the stricter limits hold."""
_LIMIT_S = {True: 0.005, False: 0.03}
_TPOT_LIMIT = {True: 0.005, False: 0.01}


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Errors of one arm at one concurrency, as medians over its requests."""

    arm: str
    concurrency: int
    n: int
    failed: int
    """Requests that ended in an error, or whose chunks or tokens are not what was sent."""
    ttft_error_s: float
    e2e_error_s: float
    tpot_error: float
    """Relative."""
    client_lag_s: float

    @property
    def within_limits(self) -> bool:
        """Whether the client is to be believed here."""
        calm = self.concurrency <= CALM
        times = max(abs(self.ttft_error_s), abs(self.e2e_error_s))
        return not self.failed and times <= _LIMIT_S[calm] and abs(self.tpot_error) <= _TPOT_LIMIT[calm]


def accuracy(
    records: Iterable[RequestRecord], truths: Iterable[Mapping[str, Any]], *, client_lag_s: float
) -> Accuracy:
    """Compare the records of one arm and concurrency with what the server says of them."""
    by_key = {(truth["arm"], truth["key"]): truth for truth in truths}
    errors: list[tuple[float, float, float]] = []
    failed = 0
    for record in records:
        truth = by_key.get((record.arm, record.nonce))
        if truth is None or record.error or list(record.chunk_tokens or ()) != truth["tokens"]:
            failed += 1
        else:
            errors.append(_errors(record, truth))
    ttft, e2e, tpot = (median(values) for values in zip(*errors, strict=True)) if errors else (0.0, 0.0, 0.0)
    return Accuracy(
        arm=record.arm,
        concurrency=record.concurrency or 0,
        n=len(errors),
        failed=failed,
        ttft_error_s=ttft,
        e2e_error_s=e2e,
        tpot_error=tpot,
        client_lag_s=client_lag_s,
    )


def _errors(record: RequestRecord, truth: Mapping[str, Any]) -> tuple[float, float, float]:
    sent_s: list[float] = truth["sent_s"]
    true_span, span = sent_s[-1] - sent_s[0], record.chunk_s[-1] - record.chunk_s[0]
    return record.chunk_s[0] - sent_s[0], record.chunk_s[-1] - sent_s[-1], span / true_span - 1
