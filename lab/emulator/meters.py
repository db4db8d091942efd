"""The Prometheus page: the metrics that the catalogue lists for a runtime, and no others.

The V0 engine of the 0.9.1 image has no `vllm:spec_decode_*` samples: on Neuron drafts are accepted inside the compiled
graph, and the server never learns how many. As in that engine, `time_per_output_token_seconds` is observed once a step
and sequence, so under speculation it is the time of a step, not of a token; and `generation_tokens_total` advances by
one a step and sequence, and by one at the end of a prefill, however many tokens the step yields
(`LLMEngine._get_stats`, read in https://github.com/aws-neuron/upstreaming-to-vllm at dd417b3). Speculation of other
engines, which count tokens there, is not emulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from experiment.catalogue.runtimes import RUNTIMES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_STEP_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_E2E_BOUNDS_S = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)


class Histogram:
    """Cumulative buckets over fixed upper bounds, in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0
        self._count = 0

    def observe(self, value: float) -> None:
        for index, bound in enumerate(self._bounds):
            self._counts[index] += value <= bound
        self._sum += value
        self._count += 1

    def samples(self, name: str, labels: str) -> Iterator[str]:
        for bound, number in zip((*self._bounds, "+Inf"), (*self._counts, self._count), strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {number}'
        yield f"{name}_sum{{{labels}}} {self._sum}"
        yield f"{name}_count{{{labels}}} {self._count}"


class Meters:
    """What an engine counts, and the page that shows it."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'model_name="{escaped}"'
        self._counters: Counter[str] = Counter()
        self._success: Counter[str] = Counter()
        self._histograms = {
            "vllm:time_to_first_token_seconds": Histogram(_TTFT_BOUNDS_S),
            "vllm:time_per_output_token_seconds": Histogram(_STEP_BOUNDS_S),
            "vllm:e2e_request_latency_seconds": Histogram(_E2E_BOUNDS_S),
        }

    def first_token(self, prompt_tokens: int, ttft_s: float) -> None:
        self._counters["vllm:prompt_tokens_total"] += prompt_tokens
        self._counters["vllm:generation_tokens_total"] += 1
        self._histograms["vllm:time_to_first_token_seconds"].observe(ttft_s)

    def step(self, step_s: float) -> None:
        """One sequence in one decode step."""
        self._counters["vllm:generation_tokens_total"] += 1
        self._histograms["vllm:time_per_output_token_seconds"].observe(step_s)

    def finished(self, reason: str, e2e_s: float) -> None:
        self._success[reason] += 1
        self._histograms["vllm:e2e_request_latency_seconds"].observe(e2e_s)

    def page(self, gauges: Mapping[str, float]) -> str:
        """The text format of Prometheus, 0.0.4."""
        return "".join(
            f"{line}\n" for name in RUNTIMES["nxdi-vllm-0.9.1"].metrics for line in self._family(name, gauges)
        )

    def _family(self, name: str, gauges: Mapping[str, float]) -> Iterator[str]:
        kind = "gauge" if name in gauges else "histogram" if name in self._histograms else "counter"
        yield f"# HELP {name} Emulated, timings are modelled."
        yield f"# TYPE {name} {kind}"
        if kind == "histogram":
            yield from self._histograms[name].samples(name, self._labels)
        elif name == "vllm:request_success_total":
            for reason in ("length", "stop"):
                yield f'{name}{{{self._labels},finished_reason="{reason}"}} {self._success[reason]}'
        else:
            yield f"{name}{{{self._labels}}} {gauges.get(name, self._counters[name])}"
