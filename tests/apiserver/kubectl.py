"""kubectl as a subprocess."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

APPLY = (
    "apply",
    "--server-side",
    "--field-manager=tests",
    "--force-conflicts",
    "--validate=strict",
    "-f",
    "-",
)


@dataclass(frozen=True)
class Kubectl:
    """The program and the cluster that it talks to."""

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

    def apply(self, objects: Iterable[dict[str, Any]], *, dry_run: bool = False) -> list[str]:
        """Apply on the server's side with strict field validation; returns what was refused or warned of."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        result = self.run(*APPLY, *(["--dry-run=server"] if dry_run else []), text=json.dumps(items))
        complaints = [line for line in result.stderr.splitlines() if line.strip()]
        return complaints or (["kubectl failed without a word"] if result.returncode else [])

    def get(self, *what: str) -> dict[str, Any]:
        """Objects as data."""
        result = self.run("get", *what, "-o", "json")
        assert result.returncode == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def patch_status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        """Set an object's status."""
        result = self.run(
            "patch", kind, name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
        )
        assert result.returncode == 0, result.stderr
