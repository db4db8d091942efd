"""The cluster without kubectl: the same objects, for tests whose subject is not the way to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from operations.cloud.kubernetes import ConflictError, Kubernetes
from tests.operations.api_server import KINDS, ApiServer, merge, plural


class DirectKubernetes(Kubernetes):
    """Reads and writes the API server's memory."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api, self._where = api, namespace

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return copy.deepcopy(self._api.objects.get(self._key(kind, name)))

    def list(
        self, kind: str, *, labels: Mapping[str, str] | None = None, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        wanted = (labels or {}).items()
        found = self._api.of(plural(kind))
        return [copy.deepcopy(one) for one in found if wanted <= one["metadata"].get("labels", {}).items()]

    def create(self, body: Mapping[str, Any]) -> None:
        kind, name = plural(body["kind"].lower()), body["metadata"]["name"]
        if self._key(kind, name) in self._api.objects:
            raise ConflictError(f"{kind} {name} exists")
        self._api.put(kind, name, copy.deepcopy(dict(body)), namespace=self._where)

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        self._api.requests.append(f"PATCH {kind}/{name}")
        merge(self._api.objects[self._key(kind, name)], copy.deepcopy(dict(change)))

    def delete(self, kind: str, name: str) -> None:
        if self._key(kind, name) in self._api.objects:
            self._api.remove(self._key(kind, name))

    def logs(self, pod: str, *, container: str | None = None, lines: int = 20) -> str:
        return self._api.logs.get(pod, "")

    def _key(self, kind: str, name: str) -> tuple[str, str, str]:
        found = plural(kind)
        return found, self._where if KINDS[found][3] else "", name
