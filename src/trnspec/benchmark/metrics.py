"""The registry of metrics: the name of each number, its meaning, and whether lower or higher is better.

Publisher, tables, dashboards and alarms read these values, so that a name or a unit exists only once.
Time per output token is per *token*: with speculative decoding one streamed chunk holds several tokens,
and a time per chunk would hide the whole gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

DIMENSIONS = ("Experiment", "Arm", "Class", "Concurrency")
"""CloudWatch dimensions, in order. Bounded by the plan: no request, run or prompt identifiers."""
PERIOD_S = 300
"""Period of dashboards and alarms: long enough that both requests of most pairs fall into one."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric, in the project's words and in CloudWatch's."""

    name: str
    """Key in summary.json; ends in its unit where it has one."""
    title: str = ""
    """The heading of figures and dashboards; empty where none shows it."""
    unit: Literal["s", "tokens/s", "tokens", "requests", "requests/s", "fraction", "USD", "runs"]
    better: Literal["lower", "higher"]
    formula: str
    """The definition in words, per request unless `scope` says otherwise."""
    scope: Literal["request", "chunk", "cell", "run"] = "request"
    """What one value describes. A cell is arm x class x concurrency; its values are calculated, not published. A value of
    the run is published only while the run is in progress."""
    cloudwatch_name: str
    """Empty if CloudWatch has no metric from which this one can be read."""
    statistic: str = "Average"
    """The CloudWatch statistic that gives this metric."""
    published: bool = True
    """Whether its values are sent to CloudWatch; false if another metric has the same values there."""
    dimensions: tuple[str, ...] = DIMENSIONS

    @property
    def cloudwatch_unit(self) -> str:
        """A CloudWatch StandardUnit."""
        return {"s": "Seconds", "tokens/s": "Count/Second", "requests/s": "Count/Second"}.get(
            self.unit, "Count"
        )


_Time = partial(Metric, unit="s", better="lower", statistic="p50")
TTFT = _Time(
    name="ttft_s",
    title="Time to first token",
    formula="time from sending the request (open loop: from when it was due) to the first chunk that carries an output token",
    cloudwatch_name="TimeToFirstToken",
)
TPOT = _Time(
    name="tpot_s",
    title="Time per output token",
    formula="(t_last - t_first_arrival) / (n_tokens - tokens_in_first_arrival)",
    cloudwatch_name="TimePerOutputToken",
)
INTER_CHUNK_LATENCY = _Time(
    name="inter_chunk_latency_s",
    title="Inter-chunk latency",
    formula="time between two successive chunks of a request that carry output",
    scope="chunk",
    cloudwatch_name="InterChunkLatency",
)
E2E = _Time(
    name="e2e_s",
    title="End-to-end latency",
    formula="time from sending the request (open loop: from when it was due) to the last chunk that carries output",
    cloudwatch_name="EndToEndLatency",
)
OUTPUT_TOKENS_PER_S = Metric(
    name="output_tokens_per_s",
    title="Output tokens per second",
    unit="tokens/s",
    better="higher",
    formula="n_tokens / e2e_s of one request",
    cloudwatch_name="OutputTokensPerSecond",
    statistic="p50",
)
TOKENS_PER_CHUNK = Metric(
    name="tokens_per_chunk",
    unit="tokens",
    better="higher",
    formula="mean output tokens of a streamed chunk; the first chunk, which comes from prefill, excluded",
    cloudwatch_name="TokensPerStep",
    published=False,
)
TOKENS_PER_STEP = Metric(
    name="tokens_per_step",
    title="Tokens of a decode step",
    unit="tokens",
    better="higher",
    formula="1 + accepted drafts / decode steps of the request, by the server's count; else tokens_per_chunk, if a step can yield "
    "as many",
    cloudwatch_name="TokensPerStep",
)
ACCEPTANCE_LENGTH = Metric(
    name="acceptance_length",
    unit="tokens",
    better="higher",
    formula="1 + accepted drafts / decode steps of the cell, by the server's statistics or counters; else tokens / chunks, if a "
    "chunk can be a step; `acceptance.source` says which",
    scope="cell",
    cloudwatch_name="TokensPerStep",
)
ERRORS = Metric(
    name="errors",
    title="Requests that failed",
    unit="requests",
    better="lower",
    formula="measured requests that ended in a named error (in CloudWatch 1 for each, 0 for the others)",
    cloudwatch_name="Errors",
    statistic="Sum",
)
ERROR_RATE = Metric(
    name="error_rate",
    unit="fraction",
    better="lower",
    formula="errors / measured requests of the cell (in CloudWatch the average of Errors)",
    scope="cell",
    cloudwatch_name="Errors",
)
GOODPUT = Metric(
    name="goodput",
    unit="requests/s",
    better="higher",
    formula="requests within every limit of the plan's slo / time of the cell's steady windows (an overloaded cell: until its "
    "last answer); a failed request is within none",
    scope="cell",
    cloudwatch_name="",
)
COST = Metric(
    name="usd_per_million_output_tokens",
    title="Cost per million output tokens",
    unit="USD",
    better="lower",
    formula="1e6 * usd_per_hour of the arm * hours of the cell's steady windows / its output tokens (an overloaded cell: until its "
    "last answer)",
    scope="cell",
    cloudwatch_name="",
)
LLMPERF_INTER_TOKEN_LATENCY = _Time(
    name="llmperf_inter_token_latency_s",
    title="Inter-token latency as llmperf counts it",
    formula="e2e_s / stream chunks, role-only and empty ones included: for comparison with old figures only",
    cloudwatch_name="LlmperfInterTokenLatency",
)
RUN_ACTIVE = Metric(
    name="run_active",
    unit="runs",
    better="higher",
    formula="1 in every minute in which a run is in progress, a last 0 when it has ended",
    scope="run",
    cloudwatch_name="RunActive",
    statistic="Minimum",
    dimensions=("Experiment",),
)

METRICS: tuple[Metric, ...] = (
    TTFT,
    TPOT,
    INTER_CHUNK_LATENCY,
    E2E,
    OUTPUT_TOKENS_PER_S,
    TOKENS_PER_CHUNK,
    TOKENS_PER_STEP,
    ACCEPTANCE_LENGTH,
    GOODPUT,
    COST,
    ERRORS,
    ERROR_RATE,
    LLMPERF_INTER_TOKEN_LATENCY,
    RUN_ACTIVE,
)
COMPARED: tuple[Metric, ...] = (TPOT, TTFT, E2E, OUTPUT_TOKENS_PER_S)
"""Metrics that comparisons report, the headline first."""
PUBLISHED: tuple[Metric, ...] = tuple(m for m in METRICS if m.scope in ("request", "chunk") and m.published)
"""Metrics that are sent to CloudWatch as they are; the others are statistics of these."""
