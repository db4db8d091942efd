"""The one published result of speculative decoding on Trn2 with vLLM, from which all assumptions about speed start.

About 45 (inferred from open-ended prompts) -> 15 ms per token for structured prompts (AWS Machine Learning Blog, April 2026).
"""

from __future__ import annotations

TARGET = "Qwen/Qwen3-32B"
DRAFT = "Qwen/Qwen3-1.7B"
TENSOR_PARALLEL = 32
SEQUENCES = 4
WINDOW = 7
PLAIN_TPOT_S = 0.045
SPEED_UP = 3.0

SLOWEST_TPOT_S = 0.2
"""More than four times a plain step, five tokens a second, about as fast as people read: what an alarm tells of and no deadline
allows for."""
