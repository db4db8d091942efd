"""Calls to the cluster with kubectl, and readers of its objects."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trnspec.core.findings import Outside, Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import NAME, NODE_ROLE_LABEL, namespace
from trnspec.operations.cloud.cloudformation import deploy_command, deploy_workloads

Object = Mapping[str, Any]
Found = list[dict[str, Any]]  # as a name, because a method below is called `list`
TIMEOUT_S = 20
"""Timeout of kubectl for a request that the endpoint does not answer."""
_PROCESS_S = 120
"""Seconds after which kubectl is ended, because its login may wait for a person."""


class NotFoundError(Refusal):
    """An object or a kind that the cluster does not have."""


class ConflictError(Refusal):
    """An object that exists already, or was changed meanwhile."""


_COMPLAINTS: tuple[tuple[str, type[Refusal], str], ...] = (
    (r"\(NotFound\)|the server doesn't have a resource type", NotFoundError, "{last}; {workloads}"),
    (r"\(AlreadyExists\)|\(Conflict\)", ConflictError, "{last}; run this again"),
    (
        "getting credentials: |exec plugin",
        Outside,
        "{first}; correct the AWS credentials, then run this again",
    ),
    (
        r"\(Unauthorized\)|must be logged in|asked for the client to provide credentials",
        Outside,
        "the cluster does not know this identity; use another AWS_PROFILE, or allow this identity: write its ARN into "
        "admins of deployment.yaml (a pipeline's stage: of pipeline.yaml), then {deploy}",
    ),
    (
        r"\(Forbidden\)|is forbidden",
        Outside,
        "{last}; use an identity that administers the cluster: one that admins of deployment.yaml or of the pipeline's stage names",
    ),
    (
        "(?i)Unable to connect|connection refused|no such host|i/o timeout|deadline exceeded|TLS handshake|connection reset|"
        "ServiceUnavailable|EOF$|no route to host|unable to handle the request",
        Outside,
        "the cluster's endpoint cannot be reached ({last}); run ./trnspec preflight {file}: this machine must be in cluster.admin_cidrs, or "
        "connect through SSM",
    ),
    ("", Refusal, "{last}"),
)
"""Errors of kubectl and their meanings; the first match is used."""


class Kubernetes:
    """One namespace of one cluster; every call is a kubectl process with its own kubeconfig, never the user's."""

    def __init__(self, *, kubectl: Path, kubeconfig: Path, experiment: Experiment) -> None:
        self._experiment = experiment
        cache = kubeconfig.parent / "cache"
        self._command = [str(kubectl), f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}"]
        self._command.append(f"--namespace={namespace(experiment)}")

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if no object has this name."""
        with suppress(NotFoundError):
            return self._json("get", kind, name)
        return None

    def list(self, kind: str, *, labels: Mapping[str, str] | None = None, everywhere: bool = False) -> Found:
        """Return all objects of a kind in the namespace; with `everywhere`, in all namespaces."""
        chosen = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        more = [*([f"--selector={chosen}"] if chosen else []), *(["--all-namespaces"] if everywhere else [])]
        items: Found = self._json("get", kind, *more)["items"]
        return items

    def create(self, body: Object) -> None:
        """Create an object. Raises `ConflictError` if it exists."""
        self._run("create", "--validate=ignore", "--filename=-", stdin=json.dumps(body))

    def scale(self, deployment: str, replicas: int) -> None:
        """Set the replicas through the subresource, which needs fewer rights than a change of the Deployment."""
        change = json.dumps({"spec": {"replicas": replicas}})
        how = ("--subresource=scale", "--type=merge", f"--patch={change}")
        self._run("patch", "deployment", deployment, *how)

    def delete(self, kind: str, name: str, *, namespace: str = "") -> None:
        """Delete an object of this namespace, or of another one, if it exists, without waiting for its finalizers."""
        where = [f"--namespace={namespace}"] if namespace else []
        self._run("delete", kind, name, "--ignore-not-found", "--wait=false", *where)

    def logs(self, pod: str, *, container: str | None = None, lines: int = 20) -> str:
        """Return the last lines of a log."""
        chosen = f"--container={container}" if container else "--all-containers"
        return self._run("logs", pod, chosen, f"--tail={lines}")

    def passthrough(self, arguments: Sequence[str]) -> int:
        """Run kubectl on the caller's terminal; returns its exit code."""
        return subprocess.run([*self._command, *arguments], check=False).returncode

    def _json(self, *arguments: str) -> dict[str, Any]:
        """Return an answer without its nulls, because Kubernetes treats them as absent."""
        try:
            return dict(json.loads(self._run(*arguments, "--output=json"), object_hook=_without_nulls))
        except (ValueError, RecursionError):
            remedy = "check the endpoint, network and proxy, then run this again"
            why = "unexpected answer, not from a Kubernetes cluster"
            raise Outside(f"{_doing(arguments)}: {why}; {remedy}") from None

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        command = [*self._command, f"--request-timeout={TIMEOUT_S}s", *arguments]
        how: Any = {"capture_output": True, "text": True, "errors": "replace", "check": False}
        try:
            done = subprocess.run(command, input=stdin, timeout=_PROCESS_S, **how)
        except OSError as error:
            raise Outside(f"{command[0]}: {error.strerror}; run scripts/setup again") from None
        except subprocess.TimeoutExpired:
            remedy = "check network and credentials, then run this again"
            raise Outside(f"{_doing(arguments)}: does not end within {_PROCESS_S} s; {remedy}") from None
        if done.returncode != 0:
            raise explain(done.stderr, doing=_doing(arguments), experiment=self._experiment)
        return str(done.stdout)


def _doing(arguments: Sequence[str]) -> str:
    return f"kubectl {' '.join(arguments[:3])}"


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if inner is not None}


def explain(stderr: str, *, doing: str, experiment: Experiment) -> Refusal:
    """Return the error for a message of kubectl, as one line."""
    lines = [line.strip()[:500] for line in stderr.splitlines() if line.strip()] or ["kubectl said nothing"]
    kind, text = next((kind, text) for pattern, kind, text in _COMPLAINTS if re.search(pattern, stderr))
    remedies = {
        "file": experiment.file,
        "workloads": deploy_workloads(experiment),
        "deploy": deploy_command(experiment),
    }
    return kind(f"{doing}: {text.format(first=lines[0], last=lines[-1], **remedies)}")


def condition(item: Object, kind: str, status: str = "True") -> Object | None:
    conditions = item.get("status", {}).get("conditions", ())
    return next((entry for entry in conditions if (entry["type"], entry["status"]) == (kind, status)), None)


def is_ready(node: Object) -> bool:
    return condition(node, "Ready") is not None


def is_usable(node: Object) -> bool:
    """Return whether a node is ready, and neither drained nor deleted: a spot node is drained after its notice."""
    going = node.get("spec", {}).get("unschedulable") or node["metadata"].get("deletionTimestamp")
    return is_ready(node) and not going


def node_of(pods: Sequence[Object], name: str) -> str:
    """Return the node of the pods of a Deployment or a Job; empty without one."""
    own = (pod for pod in pods_of(pods, name) if not pod["metadata"].get("deletionTimestamp"))
    return next((node for pod in own if (node := pod.get("spec", {}).get("nodeName"))), "")


def label(item: Object, key: str) -> str:
    return str(item["metadata"].get("labels", {}).get(key, ""))


def holds_node(pod: Object) -> bool:
    """Return whether a pod has a node and has not ended."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return bool(pod.get("spec", {}).get("nodeName")) and not ended


def role(node: Object) -> str:
    """Return `neuron`, `system`, or an empty string for a node of another owner."""
    return label(node, NODE_ROLE_LABEL)


def own_nodes(nodes: Sequence[Object]) -> list[Object]:
    """Return the nodes that the experiment's pods may use."""
    return [node for node in nodes if role(node) in ("neuron", "system")]


def trn2_nodes(nodes: Sequence[Object]) -> dict[str, Object]:
    """Return the Trn2 nodes by name."""
    return {node["metadata"]["name"]: node for node in nodes if role(node) == "neuron"}


def replicas(deployment: Object | None) -> tuple[int, int]:
    """Return the desired and the ready replicas."""
    if deployment is None:
        return 0, 0
    return deployment.get("spec", {}).get("replicas", 1), deployment.get("status", {}).get("readyReplicas", 0)


def pods_of(pods: Sequence[Object], name: str) -> list[Object]:
    naming = (NAME, "job-name", "batch.kubernetes.io/job-name")
    return [pod for pod in pods if name in map(pod["metadata"].get("labels", {}).get, naming)]


def container_statuses(pod: Object) -> list[Object]:
    """Return the kubelet's status of the pod's containers, in the order in which they start."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def json_lines(log: str) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects; an image may print anything else."""
    for line in log.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(said := json.loads(line), dict):
                yield said


def job_state(job: Object | None) -> str:
    """Return `absent`, `active`, `complete` or `failed`."""
    if job is None:
        return "absent"
    ended = next((kind for kind in ("Complete", "Failed") if condition(job, kind)), None)
    return ended.lower() if ended else "active"


def pod_containers(item: Object) -> list[Object]:
    """Return the init containers and the containers of an object's pods, or of the pod itself; none for anything else."""
    pod = item if item["kind"] == "Pod" else item.get("spec", {}).get("template", {})
    spec = pod.get("spec", {})
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]
