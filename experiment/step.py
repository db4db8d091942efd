"""`step`: what published results let expect of one engine, described on the command line instead of in a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.catalogue.models import MODELS, Shape
from experiment.catalogue.published import NOT_DENSE, PLAIN
from experiment.decoding import BEYOND, Configuration, DraftedStep, PlainStep, published_forecaster
from experiment.finding import Misuse

_KEYS = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "query_heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


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
    for name in ("tensor_parallel", "batch", "tokens", "window", "at_once"):
        if getattr(options, name) < 1:
            raise Misuse(f"--{name.replace('_', '-')}: {getattr(options, name)} is not above 0")
    if options.mode == "fused" and options.draft is None:
        raise Misuse("--mode fused: needs --draft, whose passes are part of a step")
    own = Configuration(
        shape=shape_of(options.model),
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
            draft=shape_of(options.draft or options.model),
            num_speculative_tokens=options.window,
            at_once=options.at_once,
            handicap=options.handicap,
        )
    if options.json:
        return json.dumps(
            {"origin": "predicted", "plain": vars(plain), "drafted": vars(drafted) if drafted else None}
        )
    return "\n".join([_plain(plain), *([_drafted(drafted)] if drafted else [])])


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
        f"step break even; at most {step.most_tokens} come out of one, a speed-up of {step.most_tokens / step.likely:.2f}"
    )


def shape_of(name: str) -> Shape:
    """By name or by file. Raises Misuse for a model that is not known, not dense or not described."""
    if name in MODELS:
        return MODELS[name].shape
    for row in PLAIN:
        if row.model.name == name:
            return row.model.shape
    path = Path(name)
    if not path.is_file():
        raise Misuse(f"--model {name}: is neither a model that is known nor a file; give its config.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        config = content.get("text_config") or content
        return _read(config, name)
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise Misuse(f"{name}: is not the configuration of a model ({error})") from None


def _read(config: Mapping[str, Any], name: str) -> Shape:
    kinds = {str(kind) for kind in config.get("layer_types") or ()}
    kind = (
        "experts"
        if any(config.get(key) for key in _EXPERTS)
        else "hybrid"
        if kinds - {"full_attention"}
        else None
    )
    if kind is not None:
        known = "; ".join(f"{other.model}: {other.figures}" for other in NOT_DENSE if other.kind == kind)
        what = "experts" if kind == "experts" else f"layers of kind {', '.join(sorted(kinds))}"
        raise Misuse(f"{name}: has {what}, of which nothing is forecast; published: {known}")
    if absent := [key for key in _KEYS.values() if key not in config and key != _KEYS["kv_heads"]]:
        raise Misuse(f"{name}: is not the configuration of a dense decoder; {', '.join(absent)} is not in it")
    fields = {ours: int(config[theirs]) for ours, theirs in _KEYS.items() if theirs in config}
    fields.setdefault("kv_heads", fields["query_heads"])
    head_dim = config.get("head_dim") or fields["hidden"] // fields["query_heads"]
    if min(*fields.values(), head_dim) < 1:
        raise Misuse(f"{name}: has a size that is not above 0")
    return Shape(head_dim=int(head_dim), **fields)
