"""What is started here instead of what the pod would start: the same options, with this machine's paths and port."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from experiment.finding import Refusal

LOOPBACK = "127.0.0.1"
THREADS = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TOKENIZERS_PARALLELISM": "false"}
"""One thread a server: two threads that wait for each other are slower as soon as anything else runs."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def local_argv(
    argv: Sequence[str], *, engine: Sequence[str], folders: Mapping[str, str], port: int
) -> list[str]:
    """The rendered `vllm serve ...`, started by `engine` on `port`, each mounted folder replaced by `folders`.

    Raises Refusal where the command is none of vLLM's, or names a folder that nothing is given for.
    """
    if list(argv[:2]) != ["vllm", "serve"]:
        raise Refusal(
            f"command {' '.join(argv[:2])!r}: is not `vllm serve`; the lab starts vLLM's servers only"
        )
    rest = [*argv[2:]]
    rest[0] = _folder(rest[0], folders)
    for option, value in (("--host", LOOPBACK), ("--port", str(port))):
        rest = _with(rest, option, value)
    if "--speculative-config" in rest:
        at = rest.index("--speculative-config") + 1
        config = json.loads(rest[at])
        config["model"] = _folder(config["model"], folders)
        rest[at] = json.dumps(config)
    return [*engine, "serve", *rest]


def local_probe(probe: Sequence[str], *, rendered_port: int, port: int) -> list[str]:
    """The rendered startup probe, run by this Python and pointed at `port`.

    Raises Refusal where it asks anything but the server beside it on `rendered_port`.
    """
    here, there = f"{LOOPBACK}:{rendered_port}", f"{LOOPBACK}:{port}"
    if probe[0] != "python3" or not any(here in word for word in probe):
        raise Refusal(
            f"startup probe {probe[0]!r}: is no Python that asks {here}; the lab has no other way to point it at a server"
        )
    return [sys.executable, *(word.replace(here, there) for word in probe[1:])]


def _with(argv: Sequence[str], option: str, value: str) -> list[str]:
    """The same options with one of them set to `value`."""
    if option not in argv:
        return [*argv, option, value]
    at = argv.index(option) + 1
    return [*argv[:at], value, *argv[at + 1 :]]


def _folder(mounted: str, folders: Mapping[str, str]) -> str:
    if mounted not in folders:
        raise Refusal(
            f"weights {mounted}: no folder of this machine stands for it; known are {', '.join(folders) or 'none'}"
        )
    return folders[mounted]
