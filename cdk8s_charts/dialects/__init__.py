"""How each family of runtimes is told the same things: one module a dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from cdk8s_charts.dialects import native, nxdi_v0, nxdi_v1, upstream

if TYPE_CHECKING:
    from cdk8s_charts.dialects.paths import Paths
    from experiment.arms import Arm


class Dialect(Protocol):
    """What a dialect's module offers."""

    ARTIFACT_FILES: tuple[str, ...]

    def engine_options(self, arm: Arm, paths: Paths, *, serving: bool) -> dict[str, Any]:
        """Arguments of vLLM's engine, by their Python names."""

    def server_options(self) -> dict[str, Any]:
        """Arguments that only the server takes."""

    def serve_environment(self, arm: Arm, artifact: str) -> dict[str, str]:
        """Environment of a server that loads the artifact in a folder, and cannot compile."""

    def compile_environment(self, arm: Arm, artifact: str) -> dict[str, str]:
        """Environment of a compilation that leaves its artifact in a folder."""


_DIALECTS: dict[str, Dialect] = {
    "nxdi-v0": nxdi_v0,
    "nxdi-v1": nxdi_v1,
    "native": native,
    "vllm": upstream,
}


def dialect_of(arm: Arm) -> Dialect:
    """The dialect of an arm's runtime."""
    return _DIALECTS[arm.runtime.dialect]
