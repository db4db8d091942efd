"""How each family of runtimes is told the same things: one module a dialect.

What a server, a compilation and a batch script are started with: argv and environment of an arm.

One set of engine options makes both the command line of `vllm serve` and the arguments of the engine that a compilation
builds, so that what is compiled is what is served. The dialects write them; tests compare every option with a table read
off the parser of that vLLM version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from cdk8s_charts.engine import native, nxdi_v0, nxdi_v1, upstream
from cdk8s_charts.engine.dialect import ARTIFACTS_MOUNT, SCRATCH_MOUNT, Paths
from experiment.naming import SERVICE_PORT
from experiment.naming import artifact_path as artifact_folder

if TYPE_CHECKING:
    from experiment.arms import Arm, Weights


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


_BUILD_AND_EXIT = "import json, sys; from vllm import LLM; LLM(**json.loads(sys.argv[1]))"
"""No vLLM has a command that compiles and exits; building the offline engine compiles, and its end ends the process."""


def serve_argv(arm: Arm, *, answer_limit: int | None = None) -> list[str]:
    """The command of a server, which loads a compiled artifact where there is one.

    An API key is not in it: vLLM reads `VLLM_API_KEY` from its environment. `answer_limit` is a limit and not only a
    default: vLLM takes the least of it, what a request asks for and what the context leaves (`to_sampling_params` of
    0.9.1, `get_max_tokens` later).
    """
    dialect = dialect_of(arm)
    paths = Paths()
    listening = {"served_model_name": arm.target.model.name, "host": "0.0.0.0", "port": SERVICE_PORT}
    options = listening | dialect.engine_options(arm, paths, serving=True) | dialect.server_options()
    if answer_limit is not None:
        options["override_generation_config"] = {"max_new_tokens": answer_limit}
    return ["vllm", "serve", paths.weights(arm.target), *_flags(options)]


def serve_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same server."""
    return {
        **dialect_of(arm).serve_environment(arm, artifact_path(arm)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def compile_argv(arm: Arm) -> list[str]:
    """The command that compiles an arm into `compile_environment`'s folder and exits."""
    paths = Paths()
    options = {"model": paths.weights(arm.target)} | dialect_of(arm).engine_options(arm, paths, serving=False)
    # On several lines, so that a reviewer sees which key changed: Python reads it, not vLLM's parser.
    return ["python3", "-c", _BUILD_AND_EXIT, json.dumps(options, sort_keys=True, indent=1)]


def compile_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same compilation: it writes on the node's own disk, never into a mounted bucket."""
    return {
        **dialect_of(arm).compile_environment(arm, compiled_path(arm)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def artifact_files(arm: Arm) -> tuple[str, ...]:
    """Files without which an artifact of this runtime is none, whatever its marker says."""
    return dialect_of(arm).ARTIFACT_FILES


def weights_path(weights: Weights) -> str:
    """Where a model's files are mounted."""
    return Paths().weights(weights)


def artifact_path(arm: Arm) -> str:
    """Where a server finds its arm's compiled graphs: mounted, or copied to local disk before it starts."""
    if arm.serving.artifact_source == "scratch":
        return compiled_path(arm)
    return f"{ARTIFACTS_MOUNT}/{artifact_folder(arm)}"


def compiled_path(arm: Arm) -> str:
    """Where compiling leaves an artifact, and where a copy of it goes, on the node's own disk."""
    return f"{SCRATCH_MOUNT}/artifacts/{artifact_folder(arm)}"


def _flags(options: dict[str, Any]) -> list[str]:
    """Options as `vllm serve` spells them: JSON for mappings, a bare flag for true, `--no-` for false.

    JSON stands on one line: vLLM 0.9.1 knows an object by `^{.*}$`, which ends at a line break, and would read anything else
    as KEY=VALUE pairs (`parse_type` of its engine/arg_utils.py).
    """
    argv: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            argv += [
                f"--{flag}",
                json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value),
            ]
    return argv
