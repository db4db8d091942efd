"""The cluster without kubectl: the same objects, for tests whose subject is not the way to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from operations.cloud.kubernetes import ConflictError, Kubernetes, explain
from tests.operations.api_server import KINDS, ApiServer, merge, plural


class DirectKubernetes(Kubernetes):
    """Reads and writes the API server's memory."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api, self._where = api, namespace

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        self._ask("get", plural(kind))
        return copy.deepcopy(self._api.objects.get(self._key(kind, name)))

    def list(
        self, kind: str, *, labels: Mapping[str, str] | None = None, everywhere: bool = False
    ) -> list[dict[str, Any]]:
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

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        self._ask("patch", plural(kind))
        self._api.requests.append(f"PATCH {kind}/{name}")
        merge(self._api.objects[self._key(kind, name)], copy.deepcopy(dict(change)))

    def delete(self, kind: str, name: str) -> None:
        self._ask("delete", plural(kind))
        if self._key(kind, name) in self._api.objects:
            self._api.remove(self._key(kind, name))

    def logs(self, pod: str, *, container: str | None = None, lines: int = 20) -> str:
        self._ask("get", "pods/log")
        return self._api.logs.get(pod, "")

    def _ask(self, verb: str, resource: str, *, everywhere: bool = False) -> None:
        """As the server refuses, and kubectl says it."""
        where = self._where if KINDS[resource.partition("/")[0]][3] and not everywhere else ""
        if self._api.rights is not None and not self._api.rights(verb, resource, where):
            said = f"Error from server (Forbidden): {resource} is forbidden: cannot {verb} it in namespace {where!r}"
            raise explain(said, doing=f"kubectl {verb} {resource}", experiment_name=self._where)

    def _key(self, kind: str, name: str) -> tuple[str, str, str]:
        found = plural(kind)
        return found, self._where if KINDS[found][3] else "", name
