"""llmperf's own client of OpenAI's API with a witness between it and the network. Runs in the processes that Ray starts."""

from __future__ import annotations

import importlib
from typing import Any

import ray

from benchmark.llmperf.mending import OBSERVED
from benchmark.llmperf.witness import Witness


def _module_of_the_client() -> Any:
    """With the class itself in it: llmperf's decorator would leave a handle that only makes actors."""
    decorator, ray.remote = ray.remote, lambda cls: cls
    try:
        return importlib.import_module("llmperf.ray_clients.openai_chat_completions_client")
    finally:
        ray.remote = decorator


_module = _module_of_the_client()


class ObservedClient(_module.OpenAIChatCompletionsClient):  # type: ignore[misc, name-defined] # llmperf has no types
    """llmperf's client; its metrics carry the witness's notes."""

    def llm_request(self, request_config: Any) -> tuple[dict[str, Any], str, Any]:
        """One request. For one that failed llmperf leaves zeros, by which it would then divide."""
        witness = _module.requests = Witness()
        metrics, text, config = super().llm_request(request_config)
        metrics["end_to_end_latency_s"] = metrics["end_to_end_latency_s"] or witness.elapsed_s()
        metrics["number_output_tokens"] = metrics["number_output_tokens"] or 1
        if metrics["error_code"] is not None:
            metrics["error_msg"] = metrics["error_msg"] or witness.error
        metrics[OBSERVED] = witness.notes(request_config.prompt[0], text)
        return metrics, text, config
