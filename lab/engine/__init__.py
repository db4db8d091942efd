"""The real engine: vLLM on this machine's CPU, in an environment of its own, and its servers."""
