"""Every pinned runtime by name: which flags it takes, which speculation it can do, which metrics it exposes."""

from __future__ import annotations

from experiment.catalogue.abilities import MODES, Mode, Runtime
from experiment.catalogue.native import NATIVE_VLLM_0_29, VLLM_CPU_0_32
from experiment.catalogue.nxdi import NXDI_VLLM_0_9_1, NXDI_VLLM_0_16

__all__ = [
    "MODES",
    "NATIVE_VLLM_0_29",
    "NXDI_VLLM_0_9_1",
    "NXDI_VLLM_0_16",
    "RUNTIMES",
    "VLLM_CPU_0_32",
    "Mode",
    "Runtime",
]

RUNTIMES = {
    runtime.name: runtime for runtime in (NXDI_VLLM_0_9_1, NXDI_VLLM_0_16, NATIVE_VLLM_0_29, VLLM_CPU_0_32)
}
