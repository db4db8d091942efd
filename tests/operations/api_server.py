"""A small Kubernetes API server: objects in memory, enough of REST and discovery for the real kubectl."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "pods": ("", "v1", "Pod", True, "po"),
    "nodes": ("", "v1", "Node", False, "no"),
    "configmaps": ("", "v1", "ConfigMap", True, "cm"),
    "services": ("", "v1", "Service", True, "svc"),
    "secrets": ("", "v1", "Secret", True, ""),
    "deployments": ("apps", "v1", "Deployment", True, "deploy"),
    "daemonsets": ("apps", "v1", "DaemonSet", True, "ds"),
    "jobs": ("batch", "v1", "Job", True, ""),
    "cronjobs": ("batch", "v1", "CronJob", True, "cj"),
    "resourceclaims": ("resource.k8s.io", "v1", "ResourceClaim", True, ""),
    "resourceslices": ("resource.k8s.io", "v1", "ResourceSlice", False, ""),
    "deviceclasses": ("resource.k8s.io", "v1", "DeviceClass", False, ""),
}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
Key = tuple[str, str, str]


@dataclass
class ApiServer:
    """Objects by (plural, namespace, name); every request is recorded as `VERB path`."""

    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    """By pod."""
    requests: list[str] = field(default_factory=list)
    refusal: tuple[int, str, str] | None = None
    """Status, reason and message with which every request is answered."""
    url: str = ""
    changed: Callable[[], None] = lambda: None
    """Called before every request."""
    lingering: set[str] = field(default_factory=set)
    """Pods that are not gone with their Job at once."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, kind: str, name: str, body: dict[str, Any], *, namespace: str = "") -> dict[str, Any]:
        """An object as `kubectl apply` would leave it."""
        group, version, title, namespaced, _ = KINDS[kind]
        metadata = {**body.get("metadata", {}), "name": name}
        if namespaced:
            metadata["namespace"] = namespace
        whole = {
            **body,
            "apiVersion": f"{group}/{version}" if group else version,
            "kind": title,
            "metadata": metadata,
        }
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
    api: ApiServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, verb: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        parts = urlsplit(self.path)
        with self.api.lock:
            if self.api.refusal is not None:
                status, reason, message = self.api.refusal
                return self._send(status, _status(status, reason, message))
            if parts.path in ("/api", "/apis"):
                return self._send(200, _discovery(core=parts.path == "/api"), content_type=AGGREGATED)
            self.api.requests.append(f"{verb} {parts.path}")
            self.api.changed()
            self._object(verb, parts.path, parse_qs(parts.query), sent)

    def _object(self, verb: str, path: str, query: dict[str, list[str]], sent: bytes) -> None:
        steps = path.strip("/").split("/")
        steps = steps[2:] if steps[0] == "api" else steps[3:]
        namespace = ""
        if len(steps) > 2 and steps[0] == "namespaces":
            namespace, steps = steps[1], steps[2:]
        steps = steps or [""]
        kind, name, rest = steps[0], steps[1] if len(steps) > 1 else "", steps[2:]
        if kind not in KINDS:
            return self._send(
                404, _status(404, "NotFound", "the server could not find the requested resource")
            )
        if rest == ["log"]:
            return self._text(self.api.logs.get(name, ""))
        if verb == "POST":
            return self._create(kind, namespace, json.loads(sent))
        if not name:
            return self._send(200, self._listed(kind, namespace, query))
        key = (kind, namespace, name)
        if key not in self.api.objects:
            return self._send(404, _status(404, "NotFound", f'{kind} "{name}" not found'))
        if verb == "PATCH":
            merge(self.api.objects[key], json.loads(sent))
        if verb == "DELETE":
            return self._send(200, self.api.remove(key))
        self._send(200, self.api.objects[key])

    def _create(self, kind: str, namespace: str, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        if (kind, namespace, name) in self.api.objects:
            return self._send(409, _status(409, "AlreadyExists", f'{kind} "{name}" already exists'))
        self._send(201, self.api.put(kind, name, body, namespace=namespace))

    def _listed(self, kind: str, namespace: str, query: dict[str, list[str]]) -> dict[str, Any]:
        group, version, title, namespaced, _ = KINDS[kind]
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", [""])[0].split(",") if part)
        items = [
            body
            for (found, where, _), body in self.api.objects.items()
            if found == kind
            and (not namespaced or not namespace or where == namespace)
            and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]
        return {
            "apiVersion": f"{group}/{version}" if group else version,
            "kind": f"{title}List",
            "metadata": {},
            "items": items,
        }

    def _text(self, text: str) -> None:
        self._bytes(200, text.encode(), "text/plain")

    def _send(self, status: int, body: dict[str, Any], *, content_type: str = "application/json") -> None:
        self._bytes(status, json.dumps(body).encode(), content_type)

    def _bytes(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


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
    groups: dict[str, list[dict[str, Any]]] = {}
    for plural, (group, version, title, namespaced, short) in KINDS.items():
        if (group == "") == core:
            groups.setdefault(f"{group}/{version}", []).append(
                {
                    "resource": plural,
                    "responseKind": {"group": group, "version": version, "kind": title},
                    "scope": "Namespaced" if namespaced else "Cluster",
                    "singularResource": title.lower(),
                    "shortNames": [short] if short else [],
                    "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                }
            )
    items = [
        {
            "metadata": {"name": name.split("/")[0]},
            "versions": [{"version": name.split("/")[1], "resources": resources, "freshness": "Current"}],
        }
        for name, resources in groups.items()
    ]
    return {
        "apiVersion": "apidiscovery.k8s.io/v2",
        "kind": "APIGroupDiscoveryList",
        "metadata": {},
        "items": items,
    }
