"""Ask an image's own code, without a device, whether it accepts the arguments of an experiment's arms and the heads they draft with.

Runs in the image of the arms on a node without Neuron devices, with the standard library, what the image brings and the
fetched checkpoints, of which it reads configurations and the names and shapes of tensors. One JSON line a finding on stdout.
Exit 0: everything is taken. 1: something is refused. 3: nothing is refused, and a part could not be asked, because the image's
code does not load without a device. Written for Python 3.10 and later.

A refusal is only told where the same code took something plain before (a model and nothing else, a configuration of
defaults): code that refuses that as well says nothing about the experiment. What no code of the image refuses before hours of
compiling, a head's tensors, is compared here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cdk8s_charts.draft_heads import heads
from cdk8s_charts.image_code import Arm, CannotSay, Finding, field_names, load_module, lookup, one_line

TAKEN, REFUSED, CANNOT_SAY = 0, 1, 3
PARSER = (
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.launchers",
)
TOOL_PARSERS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
FLEXIBLE = ("vllm.utils.argparse_utils", "vllm.utils")
ENGINE = ("vllm.engine.arg_utils",)
MODEL = ("vllm.config", "vllm.config.model")
SPECULATIVE = ("vllm.config", "vllm.config.speculative")
NXDI = ("neuronx_distributed_inference.models.config",)
NATIVE = ("vllm_neuron.model.neuron_config",)
BUCKETS = ("vllm_neuron.utils.bucket_utils",)
EAGLE = "vllm_neuron.vllm.spec_decode.eagle"
DRAFTERS = {
    "eagle3": ("EagleProposer", (EAGLE,)),
    "dflash": ("DFlashProposer", ("vllm_neuron.vllm.spec_decode.dflash",)),
}
"""Where the images keep what is asked here, the pinned version's place first."""
VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
_FOLDERS = """
import importlib, importlib.util, os, sys
for name in sys.argv[1:]:
    if importlib.util.find_spec(name):
        importlib.import_module(name)
getattr(sys.modules.get("vllm_neuron.native"), "reject_retired_configuration", lambda: None)()
known = {"TORCH_NEURONX_NEFF_CACHE_DIR", "NKI_COMPILE_CACHE_URL"} if sys.argv[1:] else set()
names = known | {name for name in os.environ if "CACHE" in name or "ARTIFACTS" in name}
print(*(f"{name}={os.environ.get(name, '(not set)')}" for name in sorted(names)))
"""
HEAD_COUNT = "must be divisible by tensor parallel size"
"""vLLM's own rule, which AWS turns off where NxD Inference compiles: its fork at tag 2.24.0 (vllm/config.py; tag 2.26.1 could not be
read, but AWS ran a draft of 16 heads at TP 64 on that image), its plugin at a5ef7c8 (`skip_verify_with_parallel_config`)."""
_REFUSALS = (ValueError, TypeError, AssertionError, KeyError, NotImplementedError)
"""What code raises for a value it does not take; anything else is about the machine."""


def main(argv: list[str] | None = None) -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "asked", type=Path, nargs="+", help="JSON: for each arm name, dialect, serve, engine and config"
    )
    options = parser.parse_args(argv)
    refused, silent = run_checks(
        [arm for path in options.asked for arm in json.loads(path.read_text(encoding="utf-8"))]
    )
    for line in (*refused, *silent):
        print(json.dumps(line), flush=True)
    return REFUSED if refused else CANNOT_SAY if silent else TAKEN


def run_checks(arms: list[Arm]) -> tuple[list[Finding], list[Finding]]:
    """Return refusals (arm, key, why), and what could not be asked (part, why)."""
    refused: list[Finding] = []
    silent: list[Finding] = []
    for name, part in PARTS.items():
        blamed = {line["arm"] for line in refused} if part is engine_config else set()
        asked = [arm for arm in arms if arm["name"] not in blamed]
        try:
            for arm, key, why in part(asked) if asked else ():
                refused.append({"arm": arm, "key": key, "why": one_line(why)})
        except CannotSay as reason:
            silent.append({"part": name, "why": one_line(str(reason))})
    return refused, silent


def server_arguments(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """Ask `vllm serve`'s own parser about every option by its whole name, every value, and all of them together."""
    make, flexible = lookup("make_arg_parser", PARSER), lookup("FlexibleArgumentParser", FLEXIBLE)
    parser = _plainly(lambda: make(flexible()))
    known = set(parser._option_string_actions)
    parser.error = _raise  # instead of an exit
    validate = lookup("validate_parsed_serve_args", PARSER)
    _plainly(lambda: validate(parser.parse_args(["--model", arms[0]["serve"][2]])))
    for arm in arms:
        _, _, model, *options = arm["serve"]
        strange = [word for word in options if word.startswith("--") and word.partition("=")[0] not in known]
        for word in strange:
            # argparse would take it for the beginning of another option.
            yield arm["name"], word, "this vLLM has no such option"
        if strange:
            continue
        try:
            given = parser.parse_args(["--model", model, *options])
            validate(given)
            _find_parsers(given)
        except ImportError as error:  # a parser that misses what this machine lacks
            raise CannotSay(f"{type(error).__name__}: {error}") from None
        except (*_REFUSALS, argparse.ArgumentError, SystemExit) as error:
            named = re.search(r"--[a-z][a-z0-9-]*", str(error))
            yield arm["name"], named[0] if named else "arguments", str(error)


def _find_parsers(given: argparse.Namespace) -> None:
    """Raise `KeyError` for a parser that the image lacks. vLLM looks for it only when the server starts."""
    if name := given.tool_call_parser:
        lookup("ToolParserManager", TOOL_PARSERS).get_tool_parser(name)
    if name := given.reasoning_parser:
        lookup("ReasoningParserManager", ("vllm.reasoning",)).get_reasoning_parser(name)


def engine_options(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """Ask the engine that compiles about every option, and every key of a speculative configuration."""
    fields = field_names(lookup("EngineArgs", ENGINE))
    for arm in arms:
        for name in sorted(arm["engine"].keys() - fields):
            yield arm["name"], name, "the engine of this vLLM has no such option"
    if not any("speculative_config" in arm["engine"] for arm in arms):
        return
    known = field_names(lookup("SpeculativeConfig", SPECULATIVE))
    for arm in arms:
        for name in sorted(arm["engine"].get("speculative_config", {}).keys() - known):
            yield arm["name"], f"speculative_config.{name}", "this vLLM's speculation has no such key"


def neuron_config(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """Build the configuration with the image's own class, and look for keys that it does not keep."""
    if (dialect := arms[0]["dialect"]) == "vllm":  # one image, one dialect; this one without Neuron
        return
    made = lookup("NeuronConfig", NATIVE if dialect == "native" else NXDI)
    build = made.from_dict if dialect == "native" else lambda config: made(**config)
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
    """Ask the native plugin's functions what its worker asks of buckets when it starts."""
    engine, config = arm["engine"], arm["config"]
    limits = {
        "num_batched_tokens_buckets": engine["max_num_batched_tokens"],
        "num_seqs_buckets": engine["max_num_seqs"],
        "decode_context_length_buckets": engine["max_model_len"],
    }
    for key, limit in limits.items():
        if key not in config:
            continue
        validate = lookup(f"validate_{key}", BUCKETS)
        try:
            validate(config[key], limit)
        except _REFUSALS as error:
            yield arm["name"], key, str(error)


def engine_config(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """Build the whole configuration of the engine, as compiling and serving begin: model, speculation, platform. Then ask the native
    plugin's drafter, as its worker does first of all."""
    make = lookup("EngineArgs", ENGINE)
    if arms[0]["dialect"].startswith("nxdi"):
        leave_heads_to_the_compiler()
    # The plugin gives vLLM no platform where it finds no device, and another platform has rules of its own.
    there = type(lookup("current_platform", ("vllm.platforms",))) if arms[0]["dialect"] == "nxdi-v1" else None
    if there and not there.__module__.startswith("vllm_neuron"):
        raise CannotSay(f"vLLM's platform is {there.__name__} without a device, not Neuron's")
    # 0.9.1 compares the swap space of all shards, which Neuron does not use, with this machine's memory.
    beside = {"swap_space": 0} if "swap_space" in field_names(make) else {}
    silent = []
    for arm in arms:
        options = json.loads(json.dumps(arm["engine"])) | beside
        plain = {key: value for key, value in options.items() if key in ("model", "device", "swap_space")}
        try:
            _plainly(partial(_built, make, plain))
            built = _built(make, options)
            if arm["dialect"] == "native":
                _drafted(arm, built)
        except CannotSay as reason:
            silent.append(str(reason))
        except Exception as error:
            if _about(error, options):
                yield arm["name"], "engine config", _told(error)
            else:
                silent.append(f"{type(error).__name__}: {error}")
    if silent:
        raise CannotSay("; ".join(dict.fromkeys(silent)))


def _about(error: Exception, options: Mapping[str, Any]) -> bool:
    """Return whether the error refuses the arm. OSError and AssertionError are about the machine, unless they name a model."""
    if not isinstance(error, (OSError, AssertionError)):
        return isinstance(error, _REFUSALS)
    return any(model in str(error) for model in re.findall(r"'model': '(.+?)'", str(options)))


def leave_heads_to_the_compiler() -> None:
    """Turn vLLM's rule on head counts off. Everything else of the configuration is still checked."""
    config = lookup("ModelConfig", MODEL)
    rule = config.verify_with_parallel_config

    def verify(self: Any, parallel: Any) -> None:
        try:
            rule(self, parallel)
        except ValueError as error:
            if HEAD_COUNT not in str(error):
                raise

    config.verify_with_parallel_config = verify


def _built(make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    return make(**options).create_engine_config()


def _drafted(arm: Arm, built: Any) -> None:
    """Raise `ValueError` for what the plugin's worker refuses before it loads anything."""
    config = lookup("NeuronConfig", NATIVE).from_dict(json.loads(json.dumps(arm["config"])))
    on_device = config.on_device_sampling_config is not None
    if built.scheduler_config.async_scheduling and not on_device:
        raise ValueError("asynchronous scheduling needs sampling on the device (NeuronModelRunner)")
    if (speculation := built.speculative_config) is None:
        return
    if speculation.method not in DRAFTERS:
        raise ValueError(f"the plugin has no drafter for method {speculation.method}")
    drafter = lookup(*DRAFTERS[speculation.method])
    # No process group is made here, and its rank is all it is asked.
    load_module(EAGLE).get_world_group = lambda: None
    try:
        drafter(built, load_module("torch").device("cpu"), on_device)
    except ValueError:
        raise
    except Exception as error:  # whatever it misses without a device
        raise CannotSay(f"{type(error).__name__}: {error}") from None


def _told(error: Exception) -> str:
    """Return the reason. Pydantic puts it between the number of errors and its input."""
    found = re.search(r"Value error, (.*?) \[type=", str(error), re.DOTALL)
    return found[1] if found else f"{type(error).__name__}: {error}"


def settings(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """Start the native plugin under the variables of each server. The folders of what it compiles go to stderr.

    It checks some variables when it is imported (`reject_retired_configuration` of a newer plugin's `native.py`) and one only in
    its worker (`_get_visible_devices`).
    """
    silent, seen = [], set[frozenset[str]]()
    for arm in arms:
        environment = os.environ | arm["environment"]
        if arm["dialect"] == "native" and VISIBLE_CORES in environment:
            yield arm["name"], VISIBLE_CORES, "vLLM Neuron's worker ends where it is set"
        if (names := frozenset(arm["environment"])) in seen:
            continue  # what is refused is a name
        seen.add(names)
        plugin = ["vllm_neuron", "vllm_neuron.native"] if arm["dialect"] == "native" else []
        command = [sys.executable, "-c", _FOLDERS, *plugin]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        told = done.stdout.splitlines()[-1:]
        print(f"{arm['name']}: folders of what is compiled: {''.join(told)}", file=sys.stderr, flush=True)
        error = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode and (named := environment.keys() & set(re.findall(r"\w+_\w+", error))):
            yield arm["name"], ", ".join(sorted(named)), error
        elif done.returncode:
            silent.append(error)
    if silent:
        raise CannotSay("; ".join(silent))


PARTS: dict[str, Callable[[list[Arm]], Iterator[tuple[str, str, str]]]] = {
    "settings": settings,
    "server arguments": server_arguments,
    "engine options": engine_options,
    "neuron config": neuron_config,
    "heads": heads,
    "engine config": engine_config,
}


def _plainly(act: Callable[[], Any]) -> Any:
    """Do what must work for the rest to mean anything."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        raise CannotSay(
            f"it does not take the plainest request either ({type(error).__name__}: {error})"
        ) from None


def _culprit(build: Callable[[Mapping[str, Any]], Any], config: Mapping[str, Any]) -> str:
    """Return the key without which the rest is accepted, or the whole where no single key is the cause."""
    for key in sorted(config):
        try:
            build({other: value for other, value in config.items() if other != key})
        except Exception:  # still refused, for whatever reason
            continue
        return key
    return "neuron config"


def _raise(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    sys.exit(main())
