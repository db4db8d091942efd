"""What `run` measures: the options that name arms and load, and the plan that they come to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from benchmark.verbs import arguments

if TYPE_CHECKING:
    from benchmark.plan import Plan

_DEFAULTS = {"concurrency": [4], "requests": 32, "warmup": 4, "seed": 1}
"""Of a run without a plan."""
_SAME = "model baseline classes concurrency rate requests rounds warmup max_tokens seed simultaneous ignore_eos extra_body slo"
"""Options that change what the plan calls the same, or choose from it."""


def configure_arms(group: argparse._ArgumentGroup) -> None:
    """Who is measured, and what is known about them."""
    group.add_argument(
        "--arm",
        type=arguments.address,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="address of an arm, up to and including /v1; without a plan the first is the baseline",
    )
    group.add_argument("--baseline", metavar="NAME", help="what the other arms are compared with")
    group.add_argument("--model", metavar="M", help="the served model's name")
    group.add_argument("--experiment", metavar="NAME", help="what the run is called; only without a plan")
    arguments.add_declared(group)


def configure_load(group: argparse._ArgumentGroup) -> None:
    """What they are asked, how often and how much at once."""
    load = group.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=arguments.levels, metavar="N,N", help="requests in flight, a cell each"
    )
    load.add_argument(
        "--rate",
        type=arguments.rates,
        metavar="X,X",
        help="Poisson arrivals per second instead, a cell each, however many are in flight",
    )
    group.add_argument("--requests", type=arguments.positive, metavar="N", help="measured requests per cell")
    long = group.add_mutually_exclusive_group()
    long.add_argument("--rounds", type=arguments.positive, metavar="N", help="passes over all cells")
    long.add_argument(
        "--duration", type=arguments.seconds, metavar="S", help="begin rounds until then; 90, 90s, 30m or 2h"
    )
    group.add_argument("--warmup", type=arguments.whole, metavar="N", help="unmeasured requests per arm")
    group.add_argument(
        "--max-tokens", type=arguments.positive, metavar="N", help="and no prompt may have more"
    )
    group.add_argument("--classes", type=arguments.names, metavar="A,B", help="only these classes of prompts")
    group.add_argument(
        "--seed",
        type=arguments.whole,
        metavar="N",
        help="another one makes other nonces, so that a second run meets no warm cache",
    )
    group.add_argument(
        "--simultaneous", action="store_true", default=None, help="load the arms at once instead of in turns"
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        default=None,
        help="force every answer to max_tokens; what follows its natural end distorts acceptance",
    )
    group.add_argument(
        "--extra-body", type=arguments.json_object, metavar="JSON", help="merged into each request body"
    )
    group.add_argument(
        "--slo",
        type=arguments.objectives,
        metavar="M=S,M=S",
        help="for goodput: ttft_s, tpot_s, e2e_s in seconds",
    )


def plan(options: argparse.Namespace) -> Plan:
    """The plan of a file, or one made of prompts, with what the options change."""
    from benchmark.overrides import overridden
    from benchmark.plan import from_dict, load

    whole = load(options.plan) if options.plan else from_dict(_plan_of_prompts(options))
    settings = {name: getattr(options, name) for name in _SAME.split()}
    of_arms = {"url": dict(options.arm)} | arguments.of_arms(options)
    return overridden(whole, of_arms, duration_s=options.duration, **settings)


def _plan_of_prompts(options: argparse.Namespace) -> dict[str, Any]:
    from benchmark.errors import PlanError
    from benchmark.prompt_file import load

    prompts = load(options.prompts)
    own = [n for prompt in prompts if type(n := prompt.get("max_tokens")) is int]
    max_tokens: int = options.max_tokens or (max(own) if len(own) == len(prompts) else 0)
    missing = {"--arm": options.arm, "--model": options.model, "--max-tokens": max_tokens}
    if absent := [option for option, value in missing.items() if not value]:
        raise PlanError(f"--prompts: needs {', '.join(absent)} as well, which a plan would say")
    baseline = options.baseline or options.arm[0][0]
    return {
        "schema": 1,
        "experiment": options.experiment or "unnamed",
        "model": options.model,
        "baseline": baseline,
        "arms": [_arm(name, url, options, max_tokens, baseline) for name, url in options.arm],
        **_DEFAULTS,
        "max_tokens": max_tokens,
        "prompts": prompts,
    }


def _arm(name: str, url: str, options: argparse.Namespace, max_tokens: int, baseline: str) -> dict[str, Any]:
    """An arm with what is declared about it.

    The baseline is taken to decode plainly. Of another arm that nothing is declared for a step may yield
    anything, so that its chunks never stand for tokens.
    """
    drafted = dict(options.speculative_tokens).get(name, 0 if name == baseline else None)
    per_step = max_tokens if drafted is None else drafted + 1
    return {"name": name, "url": url, "speculative_tokens": drafted or 0, "max_tokens_per_step": per_step}
