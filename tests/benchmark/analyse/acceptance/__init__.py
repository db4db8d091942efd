"""Tests of what acceptance says: yields of a step, predicted windows, advice."""
