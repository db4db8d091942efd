"""When a server is started, ready, alive, and how it leaves: asked of the server itself, never at the cost of a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment.catalogue.published import SLOWEST_TPOT_S
from experiment.naming import SERVICE_PORT

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment


LOAD_BUDGET_S = 1800
"""Time to read and load a compiled arm before Kubernetes gives up on it; compiling never happens here. An assumption:
no load time of this pair from S3 is published."""
_STARTUP_PERIOD_S = 10
_COMPLETION_TIMEOUT_S = 120
"""The first request may still load graphs onto the devices."""
_DEREGISTRATION_S = 5
"""Until every node has taken the pod's address out of the Service."""
_PROBE = f"""\
import json, os, sys
from urllib.request import Request, urlopen
server = "http://127.0.0.1:{SERVICE_PORT}"
try:
    urlopen(server + "/health", timeout=5).close()
    body = {{"model": sys.argv[1], "prompt": "1, 2, 3,", "max_tokens": 8, "temperature": 0}}
    headers = {{"Content-Type": "application/json"}}
    if os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["VLLM_API_KEY"]
    request = Request(server + "/v1/completions", json.dumps(body).encode(), headers)
    answer = json.load(urlopen(request, timeout={_COMPLETION_TIMEOUT_S - 10}))
    sys.exit(0 if answer["choices"][0]["text"] else "the completion is empty")
except (OSError, ValueError, LookupError) as error:
    sys.exit(f"not started: {{error}}")
"""
_DRAIN = f"""\
import sys, time
from urllib.request import urlopen
time.sleep({_DEREGISTRATION_S})
end = time.monotonic() + float(sys.argv[1])
names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
while time.monotonic() < end:
    try:
        lines = urlopen("http://127.0.0.1:{SERVICE_PORT}/metrics", timeout=5).read().decode().splitlines()
    except OSError:
        break
    if not any(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)):
        break
    time.sleep(1)
"""


def add_probes(server: dict[str, Any], arm: Arm) -> None:
    """Startup ends with one real completion; readiness and liveness read `/health`, which answers beside the batch.

    A busy engine answers late, so liveness waits five minutes: it is for a server that hangs, not for one that works.
    """
    server["startupProbe"] = {
        "exec": {"command": ["python3", "-c", _PROBE, arm.target.model.name]},
        "periodSeconds": _STARTUP_PERIOD_S,
        "timeoutSeconds": _COMPLETION_TIMEOUT_S,
        "failureThreshold": LOAD_BUDGET_S // _STARTUP_PERIOD_S,
    }
    server["readinessProbe"] = _health(period_s=10, timeout_s=10, failures=6)
    server["livenessProbe"] = _health(period_s=30, timeout_s=20, failures=10)


def add_drain(server: dict[str, Any], experiment: Experiment) -> int:
    """Before the server is told to stop it finishes what it has; returns the pod's grace period in seconds."""
    drain_s = int(SLOWEST_TPOT_S * _longest_answer(experiment)) + 15
    server["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", _DRAIN, str(drain_s)]}}}
    return _DEREGISTRATION_S + drain_s + 40


def _longest_answer(experiment: Experiment) -> int:
    """Tokens; callers of a promoted arm may ask for all that a sequence holds, where nothing limits them."""
    if experiment.serve is None:
        return experiment.longest_answer
    return experiment.answer_limit or experiment.baseline.serving.max_model_len


def _health(*, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": SERVICE_PORT, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
