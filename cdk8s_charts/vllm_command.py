"""The command of vLLM: argv and environment of a server and of a compilation, in the dialect of each runtime.

One set of engine options makes both the command line of `vllm serve` and the arguments of the engine that a compilation
builds, so that what is compiled is what is served. Tests compare every option with a table read off the parser of that vLLM
version. The dialects:

- `nxdi-v0`, the vLLM 0.9.1 fork (SDK 2.26.1), engine V0: AWS's Qwen3 tutorial of speculative decoding (`VLLM_USE_V1=0`),
  the fork's loader (https://github.com/aws-neuron/upstreaming-to-vllm), the Llama 3.3 tutorial for the timeouts.
- `nxdi-v1`, the vLLM V1 plugin with NxD Inference (vLLM 0.16, SDK 2.31.1): https://github.com/vllm-project/vllm-neuron,
  `worker/neuronx_distributed_model_loader.py` and `platform.py`. The key `override_neuron_config` has underscores there;
  some documentation spells it with hyphens, which the code does not read.
- `native`, the native vLLM plugin (vLLM 0.29, SDK 2.33):
  https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/guides/reference-configuration.html.
  Its artifact is a compile cache. Its key is made of graph, shapes, versions, compiler flags, platform and replica groups
  (https://github.com/aws-neuron/aws-neuron-sdk, vllm-neuron/docs/design/compilation/compilation_cache.md), so equal engine options find it
  again. It takes file locks and renames, which a mounted bucket cannot: it is copied to local disk first, and a check refuses the
  experiment otherwise. What a server does not find there it compiles, in its own copy.
"""

from __future__ import annotations

import json
from typing import Any

from trnspec.experiment.arms import Arm, Weights
from trnspec.experiment.catalogue.runtimes import version
from trnspec.experiment.compilation import (
    cache_blocks,
    compile_config,
    compiler_environment,
    serve_config,
    synchronous,
)
from trnspec.experiment.naming import SERVICE_PORT
from trnspec.experiment.naming import artifact_path as artifact_folder
from trnspec.experiment.naming import weights_path as weights_folder
from trnspec.experiment.placement import compile_share, compilers_at_once, pod_share

CHECKPOINTS_MOUNT = "/checkpoints"
ARTIFACTS_MOUNT = "/artifacts"
SCRATCH_MOUNT = "/scratch"
CHAT_TEMPLATE_MOUNT, CHAT_TEMPLATE_FILE = "/chat-template", "template.jinja"
_BUILD_AND_EXIT = "import json, sys; from vllm import LLM; LLM(**json.loads(sys.argv[1]))"
"""No vLLM has a command that compiles and exits; building the offline engine compiles, and its end ends the process."""
_BOUNDED = "from concurrent.futures import ThreadPoolExecutor as Pool; \
Pool.__init__.__defaults__ = ({}, *Pool.__init__.__defaults__[1:]); "
"""NxD's `ModelBuilder` compiles every graph but the first in a `ThreadPoolExecutor()`, so at most 32 at once, and reads no variable
(https://github.com/aws-neuron/neuronx-distributed/blob/v2.26.0/src/neuronx_distributed/trace/model_builder.py#L1564)."""
WORK_FOLDER = f"{SCRATCH_MOUNT}/home"
"""Working directory of a process that compiles: drivers write beside them."""
_ALONE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def serve_argv(arm: Arm, *, answer_limit: int | None = None) -> list[str]:
    """Return the command of a server, which loads a compiled artifact if one exists.

    An API key is not in it: vLLM reads `VLLM_API_KEY` from its environment. `answer_limit` is a limit and not only a
    default: vLLM takes the least of it, what a request asks for and what the context leaves (`to_sampling_params` of
    0.9.1, `get_max_tokens` later).
    """
    listening = {"served_model_name": arm.served_name, "host": "0.0.0.0", "port": SERVICE_PORT}
    # The options of one vLLM are not those of another.
    quiet = (
        {"disable_log_requests": True} if arm.runtime.dialect == "nxdi-v0" else {"enable_log_requests": False}
    )
    options = listening | _engine_options(arm, serving=True) | quiet | _answering(arm) | _acceptance(arm)
    if answer_limit is not None:
        options["override_generation_config"] = {"max_new_tokens": answer_limit}
    return ["vllm", "serve", weights_path(arm.target), *_flags(options)]


def serve_environment(arm: Arm) -> dict[str, str]:
    return _environment(arm, artifact_path(arm), serving=True) | _ALONE


def compile_argv(arm: Arm) -> list[str]:
    """Return the command that compiles an arm into `compile_environment`'s folder and exits."""
    options = {"model": weights_path(arm.target)} | _engine_options(arm, serving=False)
    # On several lines, so that a reviewer sees which key changed: Python reads it, not vLLM's parser.
    bound = "" if arm.runtime.dialect == "native" else _BOUNDED.format(compilers_at_once(compile_share(arm)))
    return ["python3", "-c", bound + _BUILD_AND_EXIT, json.dumps(options, sort_keys=True, indent=1)]


def compile_environment(arm: Arm) -> dict[str, str]:
    return {"HOME": WORK_FOLDER} | _environment(arm, compiled_path(arm), serving=False) | _ALONE


def weights_path(weights: Weights) -> str:
    """Return the mount path of a model's files."""
    return f"{CHECKPOINTS_MOUNT}/{weights_folder(weights)}"


def artifact_path(arm: Arm) -> str:
    """Return the folder of an arm's compiled graphs: mounted, or copied to local disk before the server starts."""
    if arm.serving.copies_artifact:
        return compiled_path(arm)
    return f"{ARTIFACTS_MOUNT}/{artifact_folder(arm)}"


def compiled_path(arm: Arm) -> str:
    """Return the folder on the node's disk for a compiled or copied artifact."""
    return f"{SCRATCH_MOUNT}/artifacts/{artifact_folder(arm)}"


def artifact_files(arm: Arm) -> tuple[str, ...]:
    """Return what an artifact contains, not empty: names, or a pattern of which it has one file at least. An artifact without it is not
    stored and not served.

    NxD Inference would compile silently without these files, which it has in addition to the sharded weights. The native plugin names
    its graphs by hashes.
    """
    return ("**/*.neff",) if arm.runtime.dialect == "native" else ("neuron_config.json", "model.pt")


def fixed_caches(arm: Arm) -> dict[str, str]:
    """Return the folders that a compiled graph names by an absolute path outside of the artifact, and where they lie in the volume.

    A graph of the native plugin names its NKI kernels by this path; a cache restored on another host without them ends in NCC_EVRF059 (a
    public account of SDK 2.32, 2026-10-03).
    """
    if arm.runtime.dialect != "native":
        return {}
    return {"/var/tmp/nki-intermediate-cache": f"artifacts/{artifact_folder(arm)}/nki-intermediate"}


def _flags(options: dict[str, Any]) -> list[str]:
    """Return options as `vllm serve` spells them: JSON for mappings, a bare flag for true, `--no-` for false.

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


def _engine_options(arm: Arm, *, serving: bool) -> dict[str, Any]:
    """Return arguments of vLLM's engine by their Python names, for a server or for a compilation."""
    shape = {
        "tensor_parallel_size": arm.serving.tensor_parallel,
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
    }
    config = serve_config(arm) if serving else compile_config(arm)
    match arm.runtime.dialect:
        case "nxdi-v0":
            options: dict[str, Any] = {"device": "neuron", **shape, "override_neuron_config": config}
        case "nxdi-v1":
            options = {
                **shape,
                # One block of the KV cache for each sequence, as the plugin asks without prefix caching.
                "num_gpu_blocks_override": arm.serving.max_num_seqs,
                "enable_prefix_caching": False,
                "additional_config": {"override_neuron_config": config},
            }
        case _:
            options = {
                **shape,
                "max_num_batched_tokens": arm.serving.max_model_len,
                # One prompt in one piece, as the plugin's examples of DFlash have it, plain and drafted alike.
                "enable_prefix_caching": False,
                "enable_chunked_prefill": False,
                "disable_hybrid_kv_cache_manager": True,
                **({"async_scheduling": False} if synchronous(arm) else {}),
                "num_gpu_blocks_override": cache_blocks(arm),
                "additional_config": {"neuron_config": config},
            }
    return options | _speculation(arm)


def _environment(arm: Arm, artifact: str, *, serving: bool) -> dict[str, str]:
    """Return the variables of a server that loads the artifact in a folder, or of a compilation that leaves it there.

    On NxD Inference the check of the artifact before a server sees to it that the server never compiles. A compilation's scratch, tens of
    GB, stays off the container's layer.
    """
    if arm.runtime.dialect == "native":
        return _native_environment(arm, artifact, serving=serving)
    first = arm.runtime.dialect == "nxdi-v0"
    framework = (
        {"VLLM_USE_V1": "0", "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference"} if first else {}
    )
    shared = {**framework, "NEURON_COMPILED_ARTIFACTS": artifact, **compiler_environment(arm)}
    if serving:
        return shared | {"NEURON_RT_EXEC_TIMEOUT": "600"} | ({"VLLM_RPC_TIMEOUT": "100000"} if first else {})
    work, cache = f"{artifact}.work/", f"{artifact}.cache"
    return shared | {"BASE_COMPILE_WORK_DIR": work, "NEURON_COMPILE_CACHE_URL": cache}


NATIVE_CACHES = {
    "VLLM_CACHE_ROOT": "",
    "HOME": "/home",
    "NEURON_COMPILE_CACHE_URL": "/neuronx-cc",
    "NKI_COMPILE_CACHE_URL": "/nki",
    "NKI_TRACE_CACHE_URL": "/nki-trace",
    "TORCHINDUCTOR_CACHE_DIR": "/inductor",
    "TORCH_NEURONX_HLO_CACHE_DIR": "/hlo",
    "TORCH_NEURONX_NEFF_CACHE_DIR": "/neff",
}
"""Every cache that a version of the plugin, of libtorch-neuronx-lite, torch-neuronx or NKI keeps, in the one folder that is stored. AWS names
`VLLM_CACHE_ROOT` for the native route (guide of the precompile cache, 2026-10-13); torch-neuronx keeps graphs in
`TORCH_NEURONX_NEFF_CACHE_DIR`, by default in /tmp; lite without a root in `~/.cache/neuron_libtorch`. Which of them the image uses is not
verified on AWS."""
_NATIVE_WAITS = dict.fromkeys(
    ("VLLM_NEURON_COMPILATION_TIMEOUT", "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_NEURON_BARRIER_TIMEOUT"), "10800"
)
"""Seconds. Whatever waits inside the engine waits longer than the pod's own limit, which depends on the prediction: for another process that
compiles (default 600 s), for the engine (600 s), for the other ranks (3,600 s). One cold graph was seen to take 1,808 s."""


def _native_environment(arm: Arm, artifact: str, *, serving: bool) -> dict[str, str]:
    """Return the same variables for a compilation and a server, so that the server finds what was compiled. It compiles the rest.

    Flags of the compiler are part of the key that it finds its graphs by (design of the compilation cache, 2026-06-22), so
    neither side is given any. Pinning workers to the CPUs near their EFA device is for several nodes; without such a device in
    the pod workers end (examples of DFlash: "harmless on instances that do have EFA"). Each rank has compilers of its own, 8 by
    default; this spelling of the variable is that of 0.21, which later versions read too and none refuses.
    """
    share = pod_share(arm) if serving else compile_share(arm)
    workers = max(1, min(8, compilers_at_once(share) // arm.serving.tensor_parallel))
    return {
        **{name: f"{artifact}{folder}" for name, folder in NATIVE_CACHES.items()},
        **compiler_environment(arm),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
        "NEURON_SKIP_EFA_AFFINITY": "1",
        "VLLM_NEURON_PARALLEL_COMPILE_WORKERS": str(workers),
        **_NATIVE_WAITS,
    }


def _speculation(arm: Arm) -> dict[str, Any]:
    """Return the one option that all dialects share; empty for an arm that does not speculate.

    `method` is given where the runtime reads one, and on the 0.9.1 fork as AWS ran it: a plain draft called "eagle" starts there
    and breaks on later lines.
    """
    if arm.speculation is None:
        return {}
    config: dict[str, Any] = {
        "model": weights_path(arm.speculation.draft),
        "num_speculative_tokens": arm.speculation.num_speculative_tokens,
        "max_model_len": arm.serving.max_model_len,
    }
    method = arm.runtime.modes[arm.speculation.mode].vllm_method
    return {"speculative_config": config | ({"method": method} if method else {})}


def _answering(arm: Arm) -> dict[str, Any]:
    """Return how requests are turned into prompts and texts into answers. No compiled graph depends on it."""
    serving = arm.serving
    options = {
        "chat_template": serving.chat_template and f"{CHAT_TEMPLATE_MOUNT}/{CHAT_TEMPLATE_FILE}",
        "tool_call_parser": serving.tool_call_parser,
        "enable_auto_tool_choice": serving.tool_call_parser is not None,
        "reasoning_parser": serving.reasoning_parser,
    }
    return {name: value for name, value in options.items() if value}


_REPORTS_ACCEPTANCE = (0, 29)
"""The first vLLM with `--per-request-spec-decode-metrics`: https://github.com/vllm-project/vllm/pull/48915."""


def _acceptance(arm: Arm) -> dict[str, Any]:
    """Return the option with which each answer says how many drafts of its steps were accepted; `detailed` would add a number for every
    step (https://docs.vllm.ai/en/stable/features/speculative_decoding/acceptance_metrics/). It is assumed that vLLM Neuron supports it.
    Not verified on AWS."""
    reports = arm.speculation and version(arm.runtime.vllm) >= _REPORTS_ACCEPTANCE
    return {"per_request_spec_decode_metrics": "summary"} if reports else {}
