"""`harness: llmperf`: the container in which llmperf measures instead of this repository's client.

The rest of the pod stays: the plan, what brings back and keeps unfinished results, and what publishes. llmperf is mended
and driven by `benchmark llmperf` in an image of its own (images/llmperf), because Ray and the tokenizer weigh more than all
else together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdk8s_charts import pod
from cdk8s_charts.measuring import RESULTS
from cdk8s_charts.serving import api_key

if TYPE_CHECKING:
    from experiment.arms import Experiment, Llmperf

IMAGE = "${LLMPERF_IMAGE}"
_OWN_MIB, _CLIENT_MIB = 1024, 64
"""Ray with llmperf, and each request at once: 1.9 GiB were measured at 32 and 3.4 GiB at 64 (sum of PSS, Ray 2.60)."""


def harness_container(experiment: Experiment, asked: Llmperf, plan_file: str) -> pod.Container:
    """Measures every arm of the plan, one after the other. Its volumes are `harness_volumes`."""
    run: pod.Container = {
        "name": "run",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "benchmark"],
        "args": [
            "llmperf",
            *("--plan", plan_file, "--out", RESULTS, "--text", asked.text),
            *("--mean-input-tokens", str(asked.mean_input_tokens)),
            *("--stddev-input-tokens", str(asked.stddev_input_tokens)),
            *("--stddev-output-tokens", str(asked.stddev_output_tokens)),
        ],
        "env": [{"name": "HOME", "value": "/tmp"}, *api_key(experiment, "BENCHMARK_API_KEY")],
        "resources": pod.amounts(
            cpu="1", memory=f"{_OWN_MIB + _CLIENT_MIB * max(experiment.benchmark.concurrency)}Mi"
        ),
        "securityContext": pod.container_security(writable_root=False),
    }
    pod.mount(run, "results", RESULTS, writable=True)
    pod.mount(run, "shm", "/dev/shm", writable=True)
    pod.mount(run, "tmp", "/tmp", writable=True)
    return run


def harness_volumes() -> list[dict[str, object]]:
    """Ray keeps its objects in shared memory, its sockets and logs in /tmp."""
    return [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}},
    ]
