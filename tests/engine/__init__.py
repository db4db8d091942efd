"""Real vLLM on this machine, in an environment of its own: a lane of `.ci/run`."""
