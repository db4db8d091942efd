"""What `run` measures: the options that name arms and load, and the plan that they come to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from benchmark.errors import PlanError
from benchmark.verbs import arguments
from benchmark.verbs.arguments import add, arm

if TYPE_CHECKING:
    from benchmark.plan import Plan

_DEFAULTS = {"concurrency": [4], "requests": 32, "warmup": 4, "seed": 1}
"""Of a run without a plan."""
_SAME = "model baseline classes concurrency rate requests rounds warmup max_tokens seed simultaneous ignore_eos extra_body slo"
"""Options that change what the plan calls the same, or choose from it."""


def configure_arms(group: argparse._ArgumentGroup) -> None:
    """Who is measured, and what is known about them."""
    where = "address of an arm, up to and including /v1; without a plan the first is the baseline"
    add(group, "--arm", arguments.address, "NAME=URL", where, action="append", default=[])
    add(group, "--baseline", str, "NAME", "what the other arms are compared with")
    add(group, "--model", str, "M", "the served model's name")
    add(group, "--experiment", str, "NAME", "what the run is called; only without a plan")
    arguments.add_declared(group)


def configure_load(group: argparse._ArgumentGroup) -> None:
    """What they are asked, how often and how much at once."""
    load, long = group.add_mutually_exclusive_group(), group.add_mutually_exclusive_group()
    arrivals = "Poisson arrivals per second instead, a cell each, however many are in flight"
    seed = "another one makes other nonces, so that a second run meets no warm cache"
    forced = "force every answer to max_tokens; what follows its natural end distorts acceptance"
    add(load, "--concurrency", arguments.levels, "N,N", "requests in flight, a cell each")
    add(load, "--rate", arguments.rates, "X,X", arrivals)
    add(group, "--requests", arguments.positive, "N", "measured requests per cell")
    add(long, "--rounds", arguments.positive, "N", "passes over all cells")
    add(long, "--duration", arguments.seconds, "S", "begin rounds until then; 90, 90s, 30m or 2h")
    add(group, "--warmup", arguments.whole, "N", "unmeasured requests per arm")
    add(group, "--max-tokens", arguments.positive, "N", "and no prompt may have more")
    add(group, "--classes", arguments.names, "A,B", "only these classes of prompts")
    add(group, "--seed", arguments.whole, "N", seed)
    for option, help_ in (
        ("--simultaneous", "load the arms at once instead of in turns"),
        ("--ignore-eos", forced),
    ):
        group.add_argument(option, action="store_true", default=None, help=help_)
    add(group, "--extra-body", arguments.json_object, "JSON", "merged into each request body")
    add(group, "--slo", arguments.objectives, "M=S,M=S", "for goodput: ttft_s, tpot_s, e2e_s in seconds")


def plan(options: argparse.Namespace) -> Plan:
    """The plan of a file, or one made of prompts, with what the options change."""
    from benchmark.overrides import overridden
    from benchmark.plan import from_dict, load

    whole = load(options.plan) if options.plan else from_dict(_plan_of_prompts(options))
    settings = {name: getattr(options, name) for name in _SAME.split()}
    of_arms = {"url": dict(options.arm)} | arguments.of_arms(options)
    return overridden(whole, of_arms, duration_s=options.duration, **settings)


def _plan_of_prompts(options: argparse.Namespace) -> dict[str, Any]:
    from benchmark.prompt_file import load

    prompts = load(options.prompts)
    own = [n for prompt in prompts if type(n := prompt.get("max_tokens")) is int]
    max_tokens: int = options.max_tokens or (max(own) if len(own) == len(prompts) else 0)
    missing = {"--arm": options.arm, "--model": options.model, "--max-tokens": max_tokens}
    if absent := [option for option, value in missing.items() if not value]:
        raise PlanError(f"--prompts: needs {', '.join(absent)} as well, which a plan would say")
    baseline = options.baseline or options.arm[0][0]
    drafted = {baseline: 0} | dict(options.speculative_tokens)  # unless told, the baseline decodes plainly
    return {
        "schema": 1,
        "experiment": options.experiment or "unnamed",
        "model": options.model,
        "baseline": baseline,
        "arms": [arm(name, url, drafted.get(name), max_tokens) for name, url in options.arm],
        **_DEFAULTS,
        "max_tokens": max_tokens,
        "prompts": prompts,
    }
