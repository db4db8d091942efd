"""Paired comparison of live OpenAI-compatible endpoints; stands alone and travels alone in an image."""

from trnspec import core as core  # before pydantic, whose plugins it turns off

NODES_VARIABLE = "BENCHMARK_NODES"
"""Environment variable with the node that serves each arm, `ARM=NODE`, with spaces between them. After a change of node, an
interrupted cell is measured again, and results are not pooled over the change."""
