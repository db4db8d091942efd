"""`harness: llmperf`: the user's own image of llmperf, for those who must compare with figures that it made.

Its prompts are its own sonnets, its figures are its own definitions, and the arms are loaded one after the other, so this
is no paired comparison. The image is the user's, named by digest; nothing of it was read or run here. Its files are
stored as they are: `*_summary.json` and `*_individual_responses.json` of
https://github.com/ray-project/llmperf (`token_benchmark_ray.py`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cdk8s_charts import measuring, pod
from cdk8s_charts.measuring import RESULTS
from cdk8s_charts.serving import api_key, service_url
from experiment.naming import ACCOUNT_PLACEHOLDER, RESULTS_PREFIX, bucket

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

_MEAN_INPUT_TOKENS = 550
"""llmperf's own default."""
_RUN = """\
for concurrency in $CONCURRENCY; do
  python token_benchmark_ray.py --num-concurrent-requests "$concurrency" --results-dir "$0/concurrency-$concurrency" "$@" || exit 1
done
"""


def harness_containers(experiment: Experiment) -> pod.PodSpec:
    """One init container an arm, in turn, then the upload."""
    address = f"s3://{bucket(experiment, 'results', ACCOUNT_PLACEHOLDER)}/{RESULTS_PREFIX}llmperf-$(JOB_UID)"
    upload = measuring.uploader(experiment, address)
    runs = [_run(experiment, arm) for arm in experiment.served_arms]
    body: pod.PodSpec = {"initContainers": runs, "containers": [upload]}
    body["volumes"] = [
        {"name": "results", "emptyDir": {"sizeLimit": "5Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}},
    ]
    pod.mount(upload, "results", RESULTS)
    for run in runs:
        pod.mount(run, "results", RESULTS, writable=True)
        pod.mount(run, "shm", "/dev/shm", writable=True)
    return body


def _run(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    settings = experiment.benchmark
    room = arm.serving.max_model_len - settings.max_tokens
    arguments = {
        "--model": arm.target.model.name,
        "--llm-api": "openai",
        "--mean-input-tokens": str(max(1, min(_MEAN_INPUT_TOKENS, room * 3 // 4))),
        "--stddev-input-tokens": "0",
        "--mean-output-tokens": str(settings.max_tokens),
        "--stddev-output-tokens": "0",
        "--max-num-completed-requests": str(settings.requests),
        "--timeout": "3600",
        "--additional-sampling-params": json.dumps({"temperature": settings.temperature}),
    }
    key = api_key(experiment, "OPENAI_API_KEY") or [{"name": "OPENAI_API_KEY", "value": "none"}]
    return {
        "name": f"run-{arm.name}",
        "image": settings.llmperf_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _RUN, f"{RESULTS}/{arm.name}"],
        "args": [word for pair in arguments.items() for word in pair],
        "env": [
            {"name": "OPENAI_API_BASE", "value": service_url(experiment, arm)},
            {"name": "CONCURRENCY", "value": " ".join(map(str, settings.concurrency))},
            {"name": "HOME", "value": "/tmp"},
            *key,
        ],
        "resources": pod.amounts(cpu="1", memory="2Gi"),
        "securityContext": pod.container_security(writable_root=True),
    }
