"""Paired comparison of live OpenAI-compatible endpoints; stands alone and travels alone in an image."""

__version__ = "0.1.0"
