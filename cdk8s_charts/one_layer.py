"""Ask an image about its arms (`image_probe.py`), then compile a copy of each NxD Inference arm with one layer, without a device.

The copy has the arm's own configuration and its models' full width; the image's own loader builds it, and the attempt ends where
the loader would open a device. It shows what the model's code or the compiler refuses of width, kernels and buckets. It does not
show that the whole model compiles in the node's memory, that its weights are sharded, or that it loads.

Not verified on AWS. By the sources nothing up to the end of `compile()` needs a device: NxD Inference v0.6.10598,
models/application_base.py:265, and NxD v2.26.0, trace/model_builder.py:1409 (`mock_distributed`), 1754 (`cpu_backend=True`) and 1871
(`disable_nrt_load`). Standard library and what the image brings; written for Python 3.10 and later. Exit codes and lines are
those of `image_probe.py`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cdk8s_charts.draft_heads import read_configuration
from cdk8s_charts.image_code import Arm, CannotSay, Finding, field_names, load_module, lookup, one_line
from cdk8s_charts.image_probe import CANNOT_SAY, ENGINE, REFUSED, TAKEN, leave_heads_to_the_compiler

SECONDS = 40 * 60
"""For all copies of an image; the Job's deadline leaves the rest to pulling it."""
MEMORY_SHARE = 0.9
"""Of the container's memory. Above it the copy ends: with cgroups v2 the kernel kills every process of a container that exceeds
its limit, this one too (https://github.com/kubernetes/kubernetes/pull/117793)."""
TARGET_LAYERS = {"eagle3": 7}
"""Layers of a target where one is not enough: an EAGLE3 target hands on its layers 1, n // 2 - 1 and n - 4, and 7 is the least n
for which these are three (NxD Inference at 4bcdc54, models/model_base.py:1404)."""
PLAIN_TOKENS, PLAIN_HEAD = 128, 64
LOADERS = {
    "nxdi-v0": "vllm.model_executor.model_loader.neuronx_distributed",
    "nxdi-v1": "vllm_neuron.worker.neuronx_distributed_model_loader",
}
APPLICATION = ("neuronx_distributed_inference.models.application_base",)
_NOT_THE_ARM = re.compile(
    r"/dev/neuron|\bnrt_|\bNRT|neuron device|F137|[Kk]illed|out of memory|No space left", re.A
)
"""In an error that is about this machine: it has no device, 16 GiB of memory and a small disk."""
_TELLING = re.compile(r"NCC_[A-Z]+\d+|\[[A-Z]+\d+\]|\bERROR\b|[Ee]rror: ")
_ANSWER = "answer.json"


class Compiled(BaseException):
    """The end of an attempt that succeeded; no `except Exception` of the loader catches it."""


def main(argv: list[str] | None = None) -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", type=Path, nargs="*", help="JSON, as image_probe.py takes it")
    parser.add_argument("--copy", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", type=Path, default=Path("/sys/fs/cgroup"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.copy:
        _attempt_here(options.copy)
    # A process of its own, so that what it loads is gone when the compiler needs the memory.
    command = [sys.executable, "-m", "cdk8s_charts.image_probe", *map(str, options.asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    code, said = done.returncode, done.stdout
    if code in (TAKEN, CANNOT_SAY):
        arms = [arm for path in options.asked for arm in json.loads(path.read_text(encoding="utf-8"))]
        attempt = partial(_attempt, ends=time.monotonic() + options.seconds, cgroup=options.cgroup)
        for line in run_checks([arm for arm in arms if arm["dialect"] in LOADERS], attempt):
            said += f"{json.dumps(line)}\n"
            code = REFUSED if "arm" in line or code == REFUSED else CANNOT_SAY
    print(said, end="", flush=True)  # last of all: a run reads the end of the log
    return code


def run_checks(arms: list[Arm], attempt: Callable[[Arm], Mapping[str, str]]) -> Iterator[Finding]:
    """Yield refusals (arm, key, why) and what could not be asked (part, why).

    A copy is refused only by an image that compiled something else: another arm's, or the plainest model.
    """
    works = False
    for arm in arms:
        told = attempt(arm)
        part, why = f"one layer of {arm['name']}", told.get("silent") or told.get("refused", "")
        if "refused" in told and not works and (plain := attempt(plainest(arm))):
            yield {"part": part, "why": f"{why}; nor a small plain model: {next(iter(plain.values()))}"}
            return
        works = works or "silent" not in told
        if "refused" in told:
            yield {"arm": arm["name"], "key": "to compile one layer", "why": why}
        elif told:
            yield {"part": part, "why": why}


def plainest(arm: Arm) -> Arm:
    """Return a copy that any such image must compile: one sequence, no draft, no setting, a head for each core."""
    engine, degree = json.loads(json.dumps(arm["engine"])), arm["engine"]["tensor_parallel_size"]
    engine.pop("speculative_config", None)
    overrides = _overrides(engine)
    overrides.clear()
    overrides["sequence_parallel_enabled"] = False  # which the fork turns on by itself
    shape = {"max_num_seqs": 1, "max_model_len": PLAIN_TOKENS, "num_gpu_blocks_override": 1}
    engine |= {key: value for key, value in shape.items() if key in engine}
    heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), degree)
    width = {"hidden_size": degree * PLAIN_HEAD, "intermediate_size": 2 * degree * PLAIN_HEAD}
    sizes = {**heads, **width, "head_dim": PLAIN_HEAD}
    return {**arm, "name": "a small plain model", "mode": "", "engine": engine, "sizes": sizes}


def _attempt(arm: Arm, *, ends: float, cgroup: Path) -> Mapping[str, str]:
    """Compile in a process of its own, so that whatever ends it ends nothing else. Return why it failed; empty if it compiled."""
    with tempfile.TemporaryDirectory(prefix="one-layer-") as name:
        folder, began = Path(name), time.monotonic()
        (folder / "arm.json").write_text(json.dumps(arm), encoding="utf-8")
        child = subprocess.Popen(
            [sys.executable, "-m", "cdk8s_charts.one_layer", "--copy", name],
            env=os.environ | _folders(folder),
            stdout=sys.stderr,  # the compiler's words; what is found goes to stdout
            start_new_session=True,
        )
        try:
            stopped = _watched(child, ends, cgroup)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the compiler's processes too
            child.wait()
        took = f"{time.monotonic() - began:.0f} s"
        try:
            told: dict[str, str] = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            told = {"silent": stopped or f"its process ended with code {child.returncode} after {took}"}
    print(f"{arm['name']}: {told or 'one layer compiled'} ({took})", file=sys.stderr, flush=True)
    return told


def _watched(child: subprocess.Popen[bytes], ends: float, cgroup: Path) -> str:
    """Wait for it; return why it must be stopped, or nothing if it ended."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
            return ""
        if time.monotonic() > ends:
            return "the time for all copies is over"
        if (used := _memory_used(cgroup)) > MEMORY_SHARE:
            return f"it needs more memory than this pod has ({used:.0%} used)"


def _memory_used(cgroup: Path) -> float:
    """Return the share of the container's memory that cannot be given back (cgroups v2); 0 where there is no limit."""
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="utf-8"))
        lines = (cgroup / "memory.stat").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return 0.0
    held = [int(line.split()[1]) for line in lines if line.split()[0] in ("anon", "shmem")]
    return sum(held) / limit


def _folders(folder: Path) -> dict[str, str]:
    """Return variables with which the image's code writes into `folder`, where nothing lay before."""
    names = ("NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR", "NEURON_COMPILE_CACHE_URL", "TMPDIR")
    return {name: f"{folder}/" if name == "TMPDIR" else f"{folder}/{name.lower()}/" for name in names}


def _attempt_here(folder: Path) -> None:
    """Write the answer and end this process at once, whatever threads the image's code has left."""
    arm = json.loads((folder / "arm.json").read_text(encoding="utf-8"))
    os.chdir(folder)  # the compiler writes into its working directory
    told: dict[str, str] = {}
    try:
        compile_copy(arm, folder)
    except CannotSay as reason:
        told = {"silent": str(reason)}
    except Exception as error:
        aside = isinstance(error, (OSError, MemoryError, ImportError)) or _NOT_THE_ARM.search(str(error))
        told = {"silent" if aside else "refused": why(error)}
    (folder / _ANSWER).write_text(json.dumps(told), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def compile_copy(arm: Arm, folder: Path) -> None:
    """Let the image's loader compile a shallow copy of the arm's models. Raises what it raises."""
    options = json.loads(json.dumps(arm["engine"]))
    _overrides(options)["save_sharded_checkpoint"] = False
    layers = TARGET_LAYERS.get(arm["mode"], 1)
    options["model"] = _shallow(Path(options["model"]), folder / "target", layers, arm.get("sizes", {}))
    if drafting := options.get("speculative_config"):
        drafting["model"] = _shallow(Path(drafting["model"]), folder / "draft", 1, {})
    # `ModelBuilder.trace` compiles all graphs at once, each in a process of the compiler (its ThreadPoolExecutor, line 1564).
    concurrent.futures.ThreadPoolExecutor = OneByOne
    load = _loader(arm, options)
    application = lookup("NeuronApplicationBase", APPLICATION)
    rule = application.compile

    def compile_and_end(self: Any, *given: Any, **named: Any) -> None:
        rule(self, *given, **named)
        raise Compiled

    application.compile = compile_and_end
    try:
        load()
    except Compiled:
        return
    raise CannotSay("the image's loader compiled nothing")


class OneByOne(concurrent.futures.ThreadPoolExecutor):
    """Compiles one graph at a time, which is what the memory allows."""

    def __init__(self, max_workers: int | None = None, *given: Any, **named: Any) -> None:
        super().__init__(1, *given, **named)


def _shallow(model: Path, copy: Path, layers: int, sizes: Mapping[str, int]) -> str:
    """Return a folder with the model's files, where its configuration has `layers` layers."""
    config = read_configuration(model)
    depth = config.get("num_hidden_layers", layers)
    copy.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            (copy / file.name).symlink_to(file.resolve())
    lists = {
        key: value[:layers]
        for key, value in config.items()
        if isinstance(value, list) and len(value) == depth
    }
    shallow = {**config, **lists, **sizes, "num_hidden_layers": min(depth, layers)}
    (copy / "config.json").write_text(json.dumps(shallow), encoding="utf-8")
    return str(copy)


def _overrides(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Neuron configuration among the engine's options."""
    home = engine if "override_neuron_config" in engine else engine["additional_config"]
    found: dict[str, Any] = home["override_neuron_config"]
    return found


def _loader(arm: Arm, options: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the image's function that loads a model, with its arguments. Its parameters have other names in other versions."""
    if arm["dialect"] == "nxdi-v1":
        # The plugin gives vLLM its platform only where it finds a device file, and asks for none while it compiles.
        load_module("vllm_neuron")._is_neuron_dev = lambda: True
    leave_heads_to_the_compiler()
    make = lookup("EngineArgs", ENGINE)
    beside = {"swap_space": 0} if "swap_space" in field_names(make) else {}
    try:
        built = make(**{**options, **beside}).create_engine_config()
    except Exception as error:  # refused or not, this was asked before
        raise CannotSay(f"its engine configuration: {type(error).__name__}: {error}") from None
    speculation = getattr(built, "speculative_config", None)
    alone = arm["dialect"] == "nxdi-v0" and speculation
    load = lookup("get_neuron_speculation_model" if alone else "get_neuron_model", (LOADERS[arm["dialect"]],))
    known = {
        **vars(built),
        **{"vllm_config": built, "lora_serving_config": None},
        **{"speculation_config": speculation, "speculative_config": speculation},
    }
    parameters = inspect.signature(load).parameters.values()
    missing = [one.name for one in parameters if one.name not in known and one.default is one.empty]
    if missing:
        raise CannotSay(f"its loader asks for {', '.join(missing)}")
    return partial(load, **{one.name: known[one.name] for one in parameters if one.name in known})


def why(error: Exception) -> str:
    """Return the line that tells most; the compiler's comes after its command and its log."""
    text = re.sub(r"^Failed compilation with \[.*?\]: ", "", str(error), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    line = next((line for line in lines if _TELLING.search(line)), lines[0])
    return one_line(f"{type(error).__name__}: {line}")


if __name__ == "__main__":
    sys.exit(main())
