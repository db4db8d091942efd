"""`step`: what published results predict for one engine, described on the command line instead of in a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from core.findings import Misuse
from core.reading import UnreadableFile
from core.screen import folded
from experiment.catalogue.models import MODELS, Shape
from experiment.catalogue.published import NOT_DENSE, PLAIN
from experiment.decoding import BEYOND, Configuration, DraftedStep, PlainStep, published_forecaster
from experiment.model_config import read_config
from experiment.model_config import shape_of as shape_of_config

_MOST = {"tensor_parallel": 64, "batch": 4096, "tokens": 1_000_000, "window": 1000, "at_once": 4096}
"""Of each option; tensor parallelism as far as rows were published."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The engine, and how it drafts."""
    model = "a model of the catalogue or of the published results, or its config.json"
    parser.add_argument("--model", required=True, metavar="NAME|FILE", help=model)
    parser.add_argument("--tensor-parallel", type=int, required=True, metavar="N", help="logical NeuronCores")
    parser.add_argument(
        "--logical-nc-config", type=int, choices=(1, 2), default=2, help="cores in a logical one"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences compiled into a step")
    parser.add_argument("--tokens", type=int, required=True, metavar="N", help="context compiled into a step")
    parser.add_argument("--handicap", choices=sorted(BEYOND), help="what is known to slow the engine down")
    parser.add_argument(
        "--mode", choices=("fused", "eagle", "eagle3", "medusa", "dflash"), help="how it drafts"
    )
    parser.add_argument("--draft", metavar="NAME|FILE", help="the draft model of mode fused")
    parser.add_argument(
        "--window", type=int, default=7, metavar="K", help="tokens drafted a step (default 7)"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="requests under way (default 1)")
    parser.add_argument("--json", action="store_true", help="the same for a machine")


def answer(options: argparse.Namespace) -> str:
    """What is expected, as text or JSON. Raises Misuse for what cannot be asked."""
    for name in _MOST:
        if not 1 <= getattr(options, name) <= _MOST[name]:
            raise Misuse(f"--{name.replace('_', '-')}: must be a whole number from 1 to {_MOST[name]:,}")
    if options.mode and options.at_once > options.batch:
        raise Misuse(
            f"--at-once {options.at_once}: a step of --batch {options.batch} takes no more than that"
        )
    if options.mode == "fused" and options.draft is None:
        raise Misuse("--mode fused: needs --draft, whose passes are part of a step")
    own = Configuration(
        shape=shape_of(options.model, "--model"),
        chips=options.tensor_parallel * options.logical_nc_config / 8,
        batch=options.batch,
        compiled_tokens=options.tokens,
    )
    by = published_forecaster()
    plain, drafted = by.plain(own, options.handicap), None
    if options.mode is not None:
        drafted = by.drafted(
            own,
            mode=options.mode,
            draft=shape_of(options.draft, "--draft") if options.draft else own.shape,
            num_speculative_tokens=options.window,
            at_once=options.at_once,
            handicap=options.handicap,
        )
    if options.json:
        return json.dumps(
            {"origin": "predicted", "plain": vars(plain), "drafted": vars(drafted) if drafted else None}
        )
    return "\n".join(folded([_plain(plain), *([_drafted(drafted)] if drafted else [])]))


def _plain(step: PlainStep) -> str:
    if step.likely_s is None or step.high_s is None:
        return f"PREDICTED: a plain step takes at least {step.bound_s * 1000:.2f} ms; no value: {step.why}"
    return (
        f"PREDICTED: a plain step takes {step.likely_s * 1000:.2f} ms ({step.low_s * 1000:.2f} to {step.high_s * 1000:.2f}), "
        f"{step.likely_s / step.bound_s:.1f} times the {step.bound_s * 1000:.2f} ms that reading the weights takes"
    )


def _drafted(step: DraftedStep) -> str:
    if step.likely is None or step.high is None:
        return f"PREDICTED: nothing is known of the drafted step: {step.why}"
    return (
        f"PREDICTED: a drafted step takes {step.likely:.2f} plain ones ({step.low:.2f} to {step.high:.2f}), so as many tokens a "
        f"step break even; at most {step.most_tokens} come out of one, a speed-up of {step.ceiling:.2f}"
    )


def shape_of(name: str, option: str) -> Shape:
    """By name or by file. Raises Misuse for a model that is not known, not dense or not described."""
    if name in MODELS:
        return MODELS[name].shape
    for row in PLAIN:
        if row.model.name == name:
            return row.model.shape
    for other in NOT_DENSE:
        if name == other.model:
            raise Misuse(
                f"{option} {name}: nothing is forecast for models with {_KINDS[other.kind]}; published: {other.figures}"
            )
    try:
        return shape_of_config(read_config(Path(name)))
    except UnreadableFile as error:
        known = f"{option} {name[:80]}: is not a model that is known"
        raise Misuse(f"{known}, and as a file it {error}; give its config.json") from None


_KINDS = {"experts": "experts", "hybrid": "layers without attention"}
