"""Tests of the run on a real engine: what it starts, how it judges, what it writes."""
