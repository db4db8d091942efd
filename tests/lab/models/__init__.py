"""Tests of the corpus, and of the checkpoints that ship."""
