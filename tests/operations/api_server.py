"""A small Kubernetes API server: objects in memory, enough of REST and discovery for the real kubectl; and the same objects without
kubectl, for tests whose subject is not the way to them."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from trnspec.experiment import Experiment
from trnspec.experiment.naming import namespace
from trnspec.operations.cloud.kubernetes import ConflictError, Found, Kubernetes, explain

_KINDS = """
v1: Pod Event Node* Namespace* ConfigMap Service Secret ServiceAccount ResourceQuota PersistentVolume* PersistentVolumeClaim
apps/v1: Deployment DaemonSet
batch/v1: Job
resource.k8s.io/v1: ResourceClaim ResourceSlice* ResourceClaimTemplate DeviceClass*
scheduling.k8s.io/v1: PriorityClass*
rbac.authorization.k8s.io/v1: ClusterRole* ClusterRoleBinding* Role RoleBinding
admissionregistration.k8s.io/v1: ValidatingAdmissionPolicy* ValidatingAdmissionPolicyBinding*
networking.k8s.io/v1: NetworkPolicy Ingress
policy/v1: PodDisruptionBudget
"""
"""By group; those with a star have no namespace."""


def _plural(kind: str) -> str:
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


KINDS = {
    _plural(kind.rstrip("*")): (version.rpartition("/")[0], version, kind.rstrip("*"), kind[-1] != "*")
    for version, _, kinds in (line.partition(": ") for line in _KINDS.strip().splitlines())
    for kind in kinds.split()
}
"""Group, version, kind and whether it has a namespace, by the name in paths."""
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
Key = tuple[str, str, str]


@dataclass
class ApiServer:
    """Objects by (plural, namespace, name)."""

    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    """By pod."""
    requests: list[str] = field(default_factory=list)
    """Each as `VERB path`."""
    refusal: tuple[int, str, str] | None = None
    """Status, reason and message with which every request is answered."""
    url: str = ""
    denied: dict[str, str] = field(default_factory=dict)
    """Why an admission webhook refuses objects, by kind."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Objects of dry runs."""
    lingering: set[str] = field(default_factory=set)
    """Pods that are not gone with their Job at once."""
    rights: Callable[[str, str, str], bool] | None = None
    """Whether the caller may do a verb with a resource (`pods`, `pods/log`) in a namespace, or in all: `""`."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, kind: str, name: str, body: dict[str, Any], *, namespace: str = "") -> dict[str, Any]:
        """An object as `kubectl apply` would leave it."""
        _, version, title, namespaced = KINDS[kind]
        metadata = {**body.get("metadata", {}), "name": name}
        if namespaced:
            metadata["namespace"] = namespace
        whole = {**body, "apiVersion": version, "kind": title, "metadata": metadata}
        self.objects[(kind, namespace if namespaced else "", name)] = whole
        return whole

    def remove(self, key: Key) -> dict[str, Any]:
        """An object, and with a Job its pods, as the garbage collector would."""
        for pod in self.of("pods") if key[0] == "jobs" else ():
            name = pod["metadata"]["name"]
            if pod["metadata"].get("labels", {}).get("job-name") == key[2] and name not in self.lingering:
                del self.objects["pods", key[1], name]
        return self.objects.pop(key)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Every object of a kind."""
        return [body for key, body in self.objects.items() if key[0] == kind]


@contextmanager
def serving(server: ApiServer) -> Iterator[ApiServer]:
    """On a free port of loopback."""

    class Handler(_Handler):
        api = server

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    api: ClassVar[ApiServer]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        with self.api.lock:
            if self.api.refusal is not None:
                return self._refuse(*self.api.refusal)
            if parts.path in ("/api", "/apis"):
                return self._send(200, _discovery(core=parts.path == "/api"), content_type=AGGREGATED)
            self.api.requests.append(f"{self.command} {parts.path}")
            self._object(parts.path, parse_qs(parts.query), sent)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def _object(self, path: str, query: dict[str, list[str]], sent: bytes) -> None:
        steps = path.strip("/").split("/")
        steps = steps[2:] if steps[0] == "api" else steps[3:]
        namespace = ""
        if len(steps) > 2 and steps[0] == "namespaces":
            namespace, steps = steps[1], steps[2:]
        kind, name, rest = [*steps, "", ""][:3] if steps else ("", "", "")
        if kind not in KINDS:
            return self._refuse(404, "NotFound", "the server could not find the requested resource")
        if rest == "scale":
            return self._scale((kind, namespace, name), sent)
        if rest == "log":
            return self._bytes(200, self.api.logs.get(name, "").encode(), "text/plain")
        if self.command == "POST":
            body = json.loads(sent)
            name = body["metadata"]["name"]
            if (kind, namespace, name) in self.api.objects:
                return self._refuse(409, "AlreadyExists", f'{kind} "{name}" already exists')
            return self._send(201, self.api.put(kind, name, body, namespace=namespace))
        if not name:
            return self._send(200, self._listed(kind, namespace, query))
        key = (kind, namespace, name)
        if query.get("dryRun") == ["All"]:
            return self._dry_run(namespace, json.loads(sent))
        if key not in self.api.objects:
            return self._refuse(404, "NotFound", f'{kind} "{name}" not found')
        if self.command == "PATCH":
            merge(self.api.objects[key], json.loads(sent))
        self._send(200, self.api.remove(key) if self.command == "DELETE" else self.api.objects[key])

    def _scale(self, key: Key, sent: bytes) -> None:
        """The subresource, which knows of nothing but replicas."""
        if key not in self.api.objects:
            return self._refuse(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        spec = self.api.objects[key].setdefault("spec", {})
        if self.command == "PATCH":
            spec["replicas"] = json.loads(sent)["spec"]["replicas"]
        about = {"name": key[2], "namespace": key[1]}
        shown = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": about}
        self._send(200, {**shown, "spec": {"replicas": spec.get("replicas", 1)}})

    def _dry_run(self, namespace: str, body: dict[str, Any]) -> None:
        """Nothing is kept; a namespace, and what a pod names, must exist; an admission webhook may say no."""
        self.api.asked.append(body)
        if namespace and namespace != "default" and ("namespaces", "", namespace) not in self.api.objects:
            return self._refuse(404, "NotFound", f'namespaces "{namespace}" not found')
        spec = body["spec"] if body["kind"] == "Pod" else {}
        account, priority = spec.get("serviceAccountName"), spec.get("priorityClassName")
        if account and ("serviceaccounts", namespace, account) not in self.api.objects:
            return self._refuse(403, "Forbidden", f'pods are forbidden: serviceaccount "{account}" not found')
        if priority and ("priorityclasses", "", priority) not in self.api.objects:
            return self._refuse(
                403, "Forbidden", f"pods are forbidden: no PriorityClass {priority} was found"
            )
        if why := self.api.denied.get(body["kind"]):
            webhook = 'admission webhook "policy.example" denied the request'
            return self._refuse(403, "Forbidden", f"{webhook}: {why}")
        self._send(200, body)

    def _listed(self, kind: str, namespace: str, query: dict[str, list[str]]) -> dict[str, Any]:
        _, version, title, namespaced = KINDS[kind]
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", [""])[0].split(",") if part)
        items = [
            body
            for (found, where, _), body in self.api.objects.items()
            if found == kind
            and (not namespaced or not namespace or where == namespace)
            and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]
        return {"apiVersion": version, "kind": f"{title}List", "metadata": {}, "items": items}

    def _refuse(self, code: int, reason: str, message: str) -> None:
        said = {"status": "Failure", "reason": reason, "message": message, "code": code}
        self._send(code, {"apiVersion": "v1", "kind": "Status", "metadata": {}, **said})

    def _send(self, status: int, body: dict[str, Any], *, content_type: str = "application/json") -> None:
        self._bytes(status, json.dumps(body).encode(), content_type)

    def _bytes(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def plural(kind: str) -> str:
    """The name in paths of a kind, or of such a name, in any case."""
    return kind.lower() if kind.lower() in KINDS else _plural(kind)


def merge(target: dict[str, Any], change: dict[str, Any]) -> None:
    """RFC 7386."""
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


def _discovery(*, core: bool) -> dict[str, Any]:
    versions: dict[str, list[dict[str, Any]]] = {}
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    for name, (group, version, title, namespaced) in KINDS.items():
        if (group == "") == core:
            kind = {"group": group, "version": version.rpartition("/")[2], "kind": title}
            scope = "Namespaced" if namespaced else "Cluster"
            resource = {"resource": name, "singularResource": title.lower(), "verbs": verbs, "scope": scope}
            versions.setdefault(version, []).append({**resource, "responseKind": kind})
    items = []
    for version, resources in versions.items():
        offered = {"version": version.rpartition("/")[2], "resources": resources, "freshness": "Current"}
        items.append({"metadata": {"name": version.rpartition("/")[0]}, "versions": [offered]})
    listed = {"kind": "APIGroupDiscoveryList", "metadata": {}, "items": items}
    return {"apiVersion": "apidiscovery.k8s.io/v2", **listed}


class DirectKubernetes(Kubernetes):
    """Reads and writes the API server's memory."""

    def __init__(self, api: ApiServer, experiment: Experiment) -> None:
        self._api, self._where, self._experiment = api, namespace(experiment), experiment

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        self._ask("get", plural(kind))
        return copy.deepcopy(self._api.objects.get(self._key(kind, name)))

    def list(self, kind: str, *, labels: Mapping[str, str] | None = None, everywhere: bool = False) -> Found:
        self._ask("list", plural(kind), everywhere=everywhere)
        wanted = (labels or {}).items()
        found = self._api.of(plural(kind))
        return [copy.deepcopy(one) for one in found if wanted <= one["metadata"].get("labels", {}).items()]

    def create(self, body: Mapping[str, Any]) -> None:
        kind, name = plural(body["kind"]), body["metadata"]["name"]
        self._ask("create", kind)
        if self._key(kind, name) in self._api.objects:
            raise ConflictError(f"{kind} {name} exists")
        self._api.put(kind, name, copy.deepcopy(dict(body)), namespace=self._where)

    def scale(self, deployment: str, replicas: int) -> None:
        for verb in ("get", "patch"):
            self._ask(verb, "deployments/scale")
        self._api.requests.append(f"PATCH deployment/{deployment}")
        self._api.objects[self._key("deployment", deployment)]["spec"]["replicas"] = replicas

    def delete(self, kind: str, name: str, *, namespace: str = "") -> None:
        self._ask("delete", plural(kind))
        key = (plural(kind), namespace, name) if namespace else self._key(kind, name)
        if key in self._api.objects:
            self._api.remove(key)

    def logs(self, pod: str, *, container: str | None = None, lines: int = 20) -> str:
        self._ask("get", "pods/log")
        return self._api.logs.get(pod, "")

    def _ask(self, verb: str, resource: str, *, everywhere: bool = False) -> None:
        """As the server refuses, and kubectl says it."""
        where = self._where if KINDS[resource.partition("/")[0]][3] and not everywhere else ""
        if self._api.rights is not None and not self._api.rights(verb, resource, where):
            said = f"Error from server (Forbidden): {resource} is forbidden: cannot {verb} it in namespace {where!r}"
            raise explain(said, doing=f"kubectl {verb} {resource}", experiment=self._experiment)

    def _key(self, kind: str, name: str) -> tuple[str, str, str]:
        found = plural(kind)
        return found, self._where if KINDS[found][3] else "", name
