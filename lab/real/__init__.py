"""The whole experiment on a real engine: vLLM on this machine's CPU, with tiny models."""
