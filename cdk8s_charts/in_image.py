"""Ask an image's own code, without a device, whether it accepts the arguments of an experiment's arms.

Runs in the image of the arms on a node without Neuron devices, with the standard library and what the image brings. One JSON
line a finding on stdout. Exit 0: everything is taken. 1: something is refused. 3: nothing is refused, and a part could not be
asked, because the image's code does not load without a device. Written for Python 3.10 and later.

A refusal is only told where the same code took something plain before (a model and nothing else, a configuration of
defaults): code that refuses that as well says nothing about the experiment.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

TAKEN, REFUSED, CANNOT_SAY = 0, 1, 3
PARSER = (
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.launchers",
)
FLEXIBLE = ("vllm.utils.argparse_utils", "vllm.utils")
ENGINE = ("vllm.engine.arg_utils",)
SPECULATIVE = ("vllm.config", "vllm.config.speculative")
NXDI = ("neuronx_distributed_inference.models.config",)
NATIVE = ("vllm_neuron.model.neuron_config",)
BUCKETS = ("vllm_neuron.utils.bucket_utils",)
"""Where the images keep what is asked here, the pinned version's place first."""
_REFUSALS = (ValueError, TypeError, AssertionError, KeyError, NotImplementedError)
"""What code raises for a value it does not take; anything else is about the machine."""

Arm = Mapping[str, Any]
Finding = dict[str, str]


class CannotSay(Exception):
    """The image's code cannot be asked here."""


def main(argv: list[str] | None = None) -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "asked", type=Path, nargs="+", help="JSON: for each arm name, dialect, serve, engine and config"
    )
    options = parser.parse_args(argv)
    refused, silent = judge(
        [arm for path in options.asked for arm in json.loads(path.read_text(encoding="utf-8"))]
    )
    for line in (*refused, *silent):
        print(json.dumps(line), flush=True)
    return REFUSED if refused else CANNOT_SAY if silent else TAKEN


def judge(arms: list[Arm]) -> tuple[list[Finding], list[Finding]]:
    """Refusals (arm, key, why), and what could not be asked (part, why)."""
    refused: list[Finding] = []
    silent: list[Finding] = []
    for name, part in PARTS.items():
        try:
            for arm, key, why in part(arms):
                refused.append({"arm": arm, "key": key, "why": _one_line(why)})
        except CannotSay as reason:
            silent.append({"part": name, "why": _one_line(str(reason))})
    return refused, silent


def server_arguments(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """`vllm serve`'s own parser takes every option by its whole name, and every value."""
    make, flexible = _found("make_arg_parser", PARSER), _found("FlexibleArgumentParser", FLEXIBLE)
    parser = _plainly(lambda: make(flexible()))
    known = set(parser._option_string_actions)
    parser.error = _raise  # instead of an exit
    _plainly(lambda: parser.parse_args(["--model", arms[0]["serve"][2]]))
    for arm in arms:
        _, _, model, *options = arm["serve"]
        strange = [word for word in options if word.startswith("--") and word.partition("=")[0] not in known]
        for word in strange:
            # argparse would take it for the beginning of another option.
            yield arm["name"], word, "this vLLM has no such option"
        if strange:
            continue
        try:
            parser.parse_args(["--model", model, *options])
        except (*_REFUSALS, argparse.ArgumentError, SystemExit) as error:
            named = re.search(r"--[a-z][a-z0-9-]*", str(error))
            yield arm["name"], named[0] if named else "arguments", str(error)


def engine_options(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """The engine that compiles knows every option, and every key of a speculative configuration."""
    fields = _fields(_found("EngineArgs", ENGINE))
    for arm in arms:
        for name in sorted(arm["engine"].keys() - fields):
            yield arm["name"], name, "the engine of this vLLM has no such option"
    if not any("speculative_config" in arm["engine"] for arm in arms):
        return
    known = _fields(_found("SpeculativeConfig", SPECULATIVE))
    for arm in arms:
        for name in sorted(arm["engine"].get("speculative_config", {}).keys() - known):
            yield arm["name"], f"speculative_config.{name}", "this vLLM's speculation has no such key"


def neuron_config(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """The configuration is built by the class that the image builds it with, which keeps every key."""
    dialect = arms[0]["dialect"]  # one image, one dialect
    if dialect.startswith("nxdi"):
        build = _by_keywords(_found("NeuronConfig", NXDI))
    elif dialect == "native":
        build = _found("NeuronConfig", NATIVE).from_dict
    else:
        return
    _plainly(lambda: build({}))
    for arm in arms:
        config = arm["config"]
        try:
            built = build(json.loads(json.dumps(config)))
        except _REFUSALS as error:
            yield arm["name"], _culprit(build, config), f"{type(error).__name__}: {error}"
            continue
        except Exception as error:
            raise CannotSay(f"{type(error).__name__}: {error}") from None
        for key in sorted(config.keys() - vars(built).keys()):
            yield arm["name"], key, "this NeuronConfig has no such key and would leave it out"
        if dialect == "native":
            yield from _buckets(arm)


def _buckets(arm: Arm) -> Iterator[tuple[str, str, str]]:
    """What the native plugin asks of buckets when its worker starts, by its own functions."""
    engine, config = arm["engine"], arm["config"]
    limits = {
        "num_batched_tokens_buckets": engine["max_num_batched_tokens"],
        "num_seqs_buckets": engine["max_num_seqs"],
        "decode_context_length_buckets": engine["max_model_len"],
    }
    for key, limit in limits.items():
        if key not in config:
            continue
        judged = _found(f"validate_{key}", BUCKETS)
        try:
            judged(config[key], limit)
        except _REFUSALS as error:
            yield arm["name"], key, str(error)


PARTS: dict[str, Callable[[list[Arm]], Iterator[tuple[str, str, str]]]] = {
    "server arguments": server_arguments,
    "engine options": engine_options,
    "neuron config": neuron_config,
}


def _found(name: str, modules: tuple[str, ...]) -> Any:
    """The first of these modules that has it."""
    why = ""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:  # whatever an import without a device ends with
            why = why or f"{type(error).__name__}: {error}"
    raise CannotSay(f"no {name} in this image ({why})")


def _plainly(act: Callable[[], Any]) -> Any:
    """What must work for the rest to mean anything."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        raise CannotSay(
            f"it does not take the plainest request either ({type(error).__name__}: {error})"
        ) from None


def _culprit(build: Callable[[Mapping[str, Any]], Any], config: Mapping[str, Any]) -> str:
    """The key without which the rest is accepted; the whole where no single key is the cause."""
    for key in sorted(config):
        try:
            build({other: value for other, value in config.items() if other != key})
        except Exception:  # still refused, for whatever reason
            continue
        return key
    return "neuron config"


def _by_keywords(made: Any) -> Callable[[Mapping[str, Any]], Any]:
    return lambda config: made(**config)


def _fields(of: Any) -> set[str]:
    if not dataclasses.is_dataclass(of):
        raise CannotSay(f"{of} is not a dataclass in this version")
    return {field.name for field in dataclasses.fields(of)}


def _raise(message: str) -> None:
    raise ValueError(message)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


if __name__ == "__main__":
    sys.exit(main())
