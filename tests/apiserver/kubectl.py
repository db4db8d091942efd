"""kubectl as a subprocess, and waiting for what controllers do in their own time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 120


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds; a generous deadline, because machines differ."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.1)


def _as_list(objects: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


SERVER_SIDE = ("--server-side", "--field-manager=tests", "--force-conflicts", "--validate=strict")


@dataclass(frozen=True)
class Kubectl:
    program: str
    config: str

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """One call, whatever its exit code."""
        return subprocess.run(
            [self.program, f"--kubeconfig={self.config}", "--request-timeout=60s", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def apply(
        self, objects: Iterable[dict[str, Any]], *, dry_run: bool = False, status: bool = False
    ) -> list[str]:
        """Apply on the server's side with strict field validation; returns what was refused or warned of."""
        options = [
            *(["--dry-run=server"] if dry_run else []),
            *(["--subresource=status"] if status else []),
        ]
        return self.feed(objects, "apply", *SERVER_SIDE, *options)

    def feed(self, objects: Iterable[dict[str, Any]], verb: str, *options: str) -> list[str]:
        """`kubectl VERB -f -`; returns its complaints."""
        result = self.run(verb, *options, "-f", "-", text=_as_list(objects))
        complaints = [line for line in result.stderr.splitlines() if line.strip()]
        return complaints or (["kubectl failed without a word"] if result.returncode else [])

    def diff(self, objects: Iterable[dict[str, Any]]) -> str:
        """What `kubectl apply` on the client's side would change; nothing where `kubectl diff` exits with 0."""
        result = self.run("diff", "-f", "-", text=_as_list(objects))
        assert result.returncode == bool(result.stdout), result.stderr
        return result.stdout

    def get(self, *what: str) -> dict[str, Any]:
        result = self.run("get", *what, "-o", "json")
        assert result.returncode == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def items(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(kind, "-n", namespace)["items"]
        return found
