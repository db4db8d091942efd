"""`python -m benchmark.llmperf.program ...`: llmperf's `token_benchmark_ray.py` for one cell, with its own options.

What is mended, and why:

- It sends as many requests as are asked for. llmperf sends up to one less than the concurrency more, and drops them.
- A failed request has no figures. llmperf has zeros for some and divides by zero for others.
- `inter_token_latency_s` is the time per token after the first (what ray-project/llmperf#99 asks for);
  `llmperf_inter_token_latency_s` is llmperf's figure as it was: time to the last chunk over the number of chunks.
- Each request is written to the file of LLMPERF_RECORDS as soon as it has ended.
- The lines of the file `sonnet.txt` in the folder of LLMPERF_TEXT, where that is set, take the sonnets' place.
- Ray starts without dashboard, on the loopback address, and reports no usage; clients of other services are left out, and
  with them hundreds of megabytes of packages.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import ray

from benchmark.llmperf.mending import NOTE, Requests, summarised
from benchmark.llmperf.observed import ObservedClient

RECORDS, TEXT = "LLMPERF_RECORDS", "LLMPERF_TEXT"
_ABSENT = {
    "litellm_client": "LiteLLMClient",
    "sagemaker_client": "SageMakerClient",
    "vertexai_client": "VertexAIClient",
}
_OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's least is 75 MiB; llmperf keeps nothing there."""
_PAUSE_S = 0.02


def _launcher(base: Any, outstanding: Requests) -> Any:
    class Launcher(base):  # type: ignore[misc] # llmperf has no types
        """llmperf's, bounded and written down."""

        def launch_requests(self, request_config: Any) -> None:
            if outstanding.take():
                super().launch_requests(request_config)

        def get_next_ready(self, block: bool = False) -> list[Any]:
            try:
                ended: list[Any] = super().get_next_ready(block)
            except ray.exceptions.RayError:
                outstanding.give_back()
                raise
            for metrics, _, _ in ended:
                outstanding.note(metrics)
            if not ended:
                time.sleep(_PAUSE_S)  # llmperf asks again at once, until the others have ended too
            return ended

    return Launcher


def _llmperf() -> Any:
    """llmperf's program as a module, without clients of other services."""
    for module, name in _ABSENT.items():
        absent = ModuleType(f"llmperf.ray_clients.{module}")
        setattr(absent, name, None)
        sys.modules[absent.__name__] = absent
    return importlib.import_module("token_benchmark_ray")


def main() -> None:
    program = _llmperf()
    options = program.args.parse_args()
    outstanding = Requests(options.max_num_completed_requests, Path(os.environ[RECORDS]))
    program.RequestsLauncher = _launcher(program.RequestsLauncher, outstanding)
    program.metrics_summary = summarised(program.metrics_summary)
    remote = ray.remote(ObservedClient)
    program.construct_clients = lambda llm_api, num_clients: [remote.remote() for _ in range(num_clients)]
    if folder := os.environ.get(TEXT):
        # llmperf looks for the text beside its own module.
        importlib.import_module("llmperf.utils").__file__ = str(Path(folder) / "utils.py")
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
    )
    program.run_token_benchmark(
        llm_api=options.llm_api,
        model=options.model,
        test_timeout_s=options.timeout,
        max_num_completed_requests=options.max_num_completed_requests,
        num_concurrent_requests=options.num_concurrent_requests,
        mean_input_tokens=options.mean_input_tokens,
        stddev_input_tokens=options.stddev_input_tokens,
        mean_output_tokens=options.mean_output_tokens,
        stddev_output_tokens=options.stddev_output_tokens,
        additional_sampling_params=options.additional_sampling_params,
        results_dir=options.results_dir,
        user_metadata={"schema_note": NOTE},
    )


if __name__ == "__main__":
    main()
