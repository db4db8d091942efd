"""Tests of the engine's installation and servers, with commands that stand for vLLM."""
