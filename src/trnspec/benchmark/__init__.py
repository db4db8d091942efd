"""Paired comparison of live OpenAI-compatible endpoints; stands alone and travels alone in an image."""

from trnspec import core as core  # before pydantic, whose plugins it turns off

NODES_VARIABLE = "BENCHMARK_NODES"
"""Environment variable with the values of `run --node`, with spaces between them."""
