"""`./trnspec VERB`: one command line for everything that people do with an experiment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from benchmark import __version__
from core.command_line import Verb, Verbs, carried_out

HERE, ON_AWS, IN_A_CHANGE = "Here", "On AWS", "In a change"
_ROWS = {
    HERE: {
        "new": ("operations.creation", "an experiment for your model and your prompts"),
        "check": ("operations.options:check", "what an experiment resolves to, or all its problems"),
        "demo": ("lab.__main__", "the whole experiment on this machine, emulated"),
        "lab": ("lab.real.__main__", "the same with a real engine on this machine's CPU"),
        "forecast": ("operations.forecast", "speed-up and cost on Trn2, from acceptance measured anywhere"),
        "published": ("experiment.__main__:published", "results that others published, and what they imply"),
        "prompts": ("operations.access_log", "prompts or an access log as lines that a run takes"),
        "step": ("experiment.__main__:step", "what published results predict for one engine"),
        "benchmark": ("benchmark.__main__:door", "run, report, gate ... for any two endpoints"),
        "results": ("benchmark.commands.results_command", "list runs with their answers"),
        "promote": ("operations.promotion", "what makes the winning arm a service"),
