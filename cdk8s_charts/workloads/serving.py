"""One arm as Deployment, Service and disruption budget; differences between arms are in their spec. Also the fixed name
of the promoted arm.

The probes and the stop hook ask the server whether it has started, is ready and alive, and may stop, without using a
slot.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from cdk8s_charts import pods, stores
from cdk8s_charts.manifests import config_map, content_suffix, kubernetes_object, synthesize_one
from cdk8s_charts.vllm_command import (
    CHAT_TEMPLATE_FILE,
    CHAT_TEMPLATE_MOUNT,
    serve_argv,
    serve_environment,
)
from cdk8s_charts.workloads import artifact_jobs
from cdk8s_charts.workloads.namespace import SERVING, priority_name
from trnspec.experiment import naming
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.published import SLOWEST_TPOT_S
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.cost import start_budget_s
from trnspec.experiment.placement import pod_share

if TYPE_CHECKING:
    import cdk8s

_STARTUP_PERIOD_S = 10
_COMPLETION_TIMEOUT_S = 120
"""The first request may still load graphs onto the devices."""
_DEREGISTRATION_S = 5
"""Time until every node has removed the pod's address from the Service."""
STARTUP_PROBE = f"""\
import json, os, sys
from urllib.request import Request, urlopen
server = "http://127.0.0.1:{naming.SERVICE_PORT}"
try:
    urlopen(server + "/health", timeout=5).close()
    body = {{"model": sys.argv[1], "prompt": "1, 2, 3,", "max_tokens": 8, "temperature": 0}}
    headers = {{"Content-Type": "application/json"}}
    if os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["VLLM_API_KEY"]
    request = Request(server + "/v1/completions", json.dumps(body).encode(), headers)
    answer = json.load(urlopen(request, timeout={_COMPLETION_TIMEOUT_S - 10}))
    if not answer["choices"][0]["text"]:
        sys.exit("the completion is empty")
except (OSError, ValueError, LookupError) as error:
    sys.exit(f"not started: {{error}}")
root = os.environ.get("VLLM_CACHE_ROOT")
try:
    if root:
        with open(root + "/{naming.ARTIFACT_FILES}") as listed, open("/proc/1/fd/1", "w") as log:
            stored = {{file["path"] for file in json.load(listed)["files"]}}
            found = (os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names)
            made = sum(path.endswith(".neff") and path not in stored for path in found)
            print(json.dumps({{"{naming.COMPILED_AT_SERVING}": made}}), file=log)
except (OSError, ValueError, LookupError) as error:
    print(f"compiled graphs are not counted: {{error}}")
"""
"""Once the server answers, it also writes into the server's log how many compiled graphs the stored artifact lacks: a run reads logs, and may
execute nothing in a pod."""
_DRAIN = f"""\
import sys, time
from urllib.request import urlopen
time.sleep({_DEREGISTRATION_S})
end = time.monotonic() + float(sys.argv[1])
names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
while time.monotonic() < end:
    try:
        lines = urlopen("http://127.0.0.1:{naming.SERVICE_PORT}/metrics", timeout=5).read().decode().splitlines()
    except OSError:
        break
    if not any(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)):
        break
    time.sleep(1)
"""
CONTAINER = "vllm"
_API_KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM reads this variable if its command line, which everybody can read, has no `--api-key`."""


def arm_objects(experiment: Experiment, arm: Arm) -> list[dict[str, Any]]:
    """Return the objects of an arm; the compilation comes first."""
    return [
        artifact_jobs.compiling_job(experiment, arm),
        deployment(experiment, arm),
        service(experiment, arm),
        disruption_budget(experiment, arm),
    ]


def deployment(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return the Deployment, at 0 replicas until the arm's artifact exists and the arm is scaled up.

    An arm that was chosen to stay (`serve`) stands at its replicas.
    """
    own = naming.labels(experiment, arm.name, "server")
    serve, spec = experiment.serve, copy.deepcopy(_written_by_cdk8s_plus()["spec"])
    body: pods.PodSpec = spec["template"]["spec"]
    body["volumes"][0]["emptyDir"] = pods.shared_memory(pod_share(arm))
    (server,) = body["containers"]
    server |= _server(experiment, arm)
    stores.add_sources(experiment, body, server, arm)
    mount_chat_template(experiment, body, server)
    pods.hold_devices(body, server, experiment, arm)
    pods.on_neuron_nodes(body)
    pods.harden(
        body,
        grace_s=_add_drain(server, experiment),
        priority=priority_name(experiment, SERVING),
        level=arm.serving.pod_security,
    )
    spec["progressDeadlineSeconds"] = start_budget_s(experiment) + 600
    spec["replicas"] = serve.replicas if serve and serve.arm == arm.name else 0
    spec["selector"] = {"matchLabels": {naming.NAME: arm.name}}
    spec["template"]["metadata"] = {"labels": own, "annotations": {naming.ARTIFACT_KEY: artifact_key(arm)}}
    labels = {**own, naming.BATCH: naming.batch_of(experiment, arm)}
    return kubernetes_object("apps/v1", "Deployment", arm.name, within=experiment, labels=labels, spec=spec)


def _probes(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return the probes. Startup ends with one real completion; readiness and liveness read `/health`, which answers without a slot.

    A busy engine answers late, so liveness waits five minutes: it is for a server that hangs, not for one that works.
    """
    startup = {
        "exec": {"command": ["python3", "-c", STARTUP_PROBE, arm.served_name]},
        "periodSeconds": _STARTUP_PERIOD_S,
        "timeoutSeconds": _COMPLETION_TIMEOUT_S,
        "failureThreshold": start_budget_s(experiment) // _STARTUP_PERIOD_S,
    }
    return {
        "startupProbe": startup,
        "readinessProbe": _health(period_s=10, timeout_s=10, failures=6),
        "livenessProbe": _health(period_s=30, timeout_s=20, failures=10),
    }


def _add_drain(server: dict[str, Any], experiment: Experiment) -> int:
    """Let the server finish its requests before it is stopped, and return the pod's grace period in seconds.

    Callers of a promoted arm may ask for all that a sequence holds, unless the experiment limits answers.
    """
    answer = experiment.longest_answer
    if experiment.serve:
        answer = experiment.answer_limit or experiment.baseline.serving.max_model_len
    drain_s = int(SLOWEST_TPOT_S * answer) + 15
    server["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", _DRAIN, str(drain_s)]}}}
    return _DEREGISTRATION_S + drain_s + 40


def _health(*, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": naming.SERVICE_PORT, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def service(experiment: Experiment, arm: Arm, name: str = "") -> dict[str, Any]:
    """Return a ClusterIP in front of an arm, under the arm's name or another. It selects its pods by all labels by which a network policy does: EKS's
    policy engine sees a connection before its address is a pod's, and lets it out only to Services whose own selector has them
    (https://github.com/aws/amazon-network-policy-controller-k8s/issues/224)."""
    spec = {
        "type": "ClusterIP",
        "selector": {naming.NAME: arm.name, naming.ROLE: "server"},
        "ports": [{"name": "http", "port": naming.SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    own = naming.labels(experiment, arm.name, "server")
    return kubernetes_object("v1", "Service", name or arm.name, within=experiment, labels=own, spec=spec)


def disruption_budget(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return a disruption budget that always allows one pod to be moved, and any pod that is not ready, so a node update is never blocked."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {naming.NAME: arm.name}},
    }
    own = naming.labels(experiment, arm.name, "server")
    return kubernetes_object(
        "policy/v1", "PodDisruptionBudget", arm.name, within=experiment, labels=own, spec=spec
    )


def chat_template(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the chat template of all arms as a ConfigMap; empty if the model's own is used."""
    text = experiment.baseline.serving.chat_template
    if text is None:
        return []
    data = {CHAT_TEMPLATE_FILE: text}
    return [config_map(experiment, f"chat-template-{content_suffix(data)}", data)]


def mount_chat_template(experiment: Experiment, body: pods.PodSpec, holder: pods.Container) -> None:
    for item in chat_template(experiment):
        pods.add_files(body, "chat-template", item["metadata"]["name"], CHAT_TEMPLATE_MOUNT, holder)


def service_url(experiment: Experiment, arm: Arm) -> str:
    """Return the base URL of the arm's OpenAI API inside the cluster."""
    return f"http://{arm.name}.{naming.namespace(experiment)}.svc.cluster.local:{naming.SERVICE_PORT}/v1"


def api_key(experiment: Experiment, variable: str) -> list[dict[str, Any]]:
    """Return the API key of the services as a variable of a container; empty if they need no key."""
    secret = experiment.baseline.serving.api_key_secret
    if secret is None:
        return []
    return [{"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": "api-key"}}}]


@cache
def _written_by_cdk8s_plus() -> dict[str, Any]:
    """Return the Deployment as far as it is the same for every arm."""
    return synthesize_one(_add_deployment)


def _add_deployment(chart: cdk8s.Chart) -> None:
    import cdk8s_plus_27 as kplus  # here, because it starts jsii

    written = kplus.Deployment(
        chart,
        "arm",
        replicas=0,
        select=False,
        strategy=kplus.DeploymentStrategy.recreate(),
        service_account=kplus.ServiceAccount.from_service_account_name(
            chart, "account", naming.SERVING_ACCOUNT
        ),
        automount_service_account_token=False,
        security_context=kplus.PodSecurityContextProps(ensure_non_root=False),
    )
    container = written.add_container(
        name=CONTAINER,
        image="that of the arm",
        image_pull_policy=kplus.ImagePullPolicy.IF_NOT_PRESENT,
        ports=[kplus.ContainerPort(number=naming.SERVICE_PORT, name="http")],
    )
    shared_memory = kplus.Volume.from_empty_dir(chart, "shm", "shm", medium=kplus.EmptyDirMedium.MEMORY)
    container.mount("/dev/shm", shared_memory)


def _server(experiment: Experiment, arm: Arm) -> pods.Container:
    """Return what the arm adds to the container. Requests are equal to limits, so that no arm takes resources from another."""
    environment = serve_environment(arm)
    if arm.serving.pod_security == "restricted":
        environment = {"HOME": "/tmp", **environment}  # the user of `restricted` has no home in the image
    return {
        "image": arm.runtime.image,
        "resources": pods.part_of_node(pod_share(arm), disk_gib=pods.serving_ephemeral_gib(experiment)),
        "securityContext": pods.container_security(writable_root=True, level=arm.serving.pod_security),
        "command": serve_argv(arm, answer_limit=experiment.answer_limit),
        "env": pods.variables(environment) + api_key(experiment, _API_KEY_VARIABLE),
        **_probes(experiment, arm),
    }


def promoted_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the Service of the promoted arm: another arm changes its selector and nothing for the callers."""
    arm = experiment.promoted
    return [service(experiment, arm, experiment.name + naming.PROMOTED_SUFFIX)] if arm else []
