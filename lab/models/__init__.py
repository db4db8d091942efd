"""Tiny Qwen3 models for the lab: what they are trained on, how, and the checkpoints that came out."""
