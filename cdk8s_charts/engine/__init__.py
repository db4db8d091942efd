"""What vLLM is started with: argv and environment."""
