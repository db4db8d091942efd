"""Paired comparison of live OpenAI-compatible endpoints; stands alone and travels alone in an image."""

import core as core  # before pydantic, whose plugins it turns off

__version__ = "0.3.0"
NODES_VARIABLE = "BENCHMARK_NODES"
"""Environment variable with the values of `run --node`, with spaces between them."""
