"""What a server and a compilation are started with: argv and environment of an arm.

One set of engine options makes both the command line of `vllm serve` and the arguments of the engine that a compilation
builds, so that what is compiled is what is served. The dialects write them; tests compare every option with a table read
off the parser of that vLLM version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine.dialects import ARTIFACTS_MOUNT, SCRATCH_MOUNT, dialect_of, weights_path
from experiment.naming import SERVICE_PORT
from experiment.naming import artifact_path as artifact_folder

if TYPE_CHECKING:
    from experiment.arms import Arm

_BUILD_AND_EXIT = "import json, sys; from vllm import LLM; LLM(**json.loads(sys.argv[1]))"
"""No vLLM has a command that compiles and exits; building the offline engine compiles, and its end ends the process."""
_ALONE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def serve_argv(arm: Arm, *, answer_limit: int | None = None) -> list[str]:
    """The command of a server, which loads a compiled artifact where there is one.

    An API key is not in it: vLLM reads `VLLM_API_KEY` from its environment. `answer_limit` is a limit and not only a
    default: vLLM takes the least of it, what a request asks for and what the context leaves (`to_sampling_params` of
    0.9.1, `get_max_tokens` later).
    """
    dialect = dialect_of(arm)
    listening = {"served_model_name": arm.target.model.name, "host": "0.0.0.0", "port": SERVICE_PORT}
    options = listening | dialect.engine_options(arm, True) | dialect.server_options
    if answer_limit is not None:
        options["override_generation_config"] = {"max_new_tokens": answer_limit}
    return ["vllm", "serve", weights_path(arm.target), *_flags(options)]


def serve_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same server."""
    return dialect_of(arm).environment(arm, artifact_path(arm), True) | _ALONE


def compile_argv(arm: Arm) -> list[str]:
    """The command that compiles an arm into `compile_environment`'s folder and exits."""
    options = {"model": weights_path(arm.target)} | dialect_of(arm).engine_options(arm, False)
    # On several lines, so that a reviewer sees which key changed: Python reads it, not vLLM's parser.
    return ["python3", "-c", _BUILD_AND_EXIT, json.dumps(options, sort_keys=True, indent=1)]


def compile_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same compilation: it writes on the node's own disk, never into a mounted bucket."""
    return dialect_of(arm).environment(arm, compiled_path(arm), False) | _ALONE


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
            text = json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)
            argv += [f"--{flag}", text]
    return argv
