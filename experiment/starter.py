"""A first experiment for a model and its prompts: short, with comments, and right by every check.

The catalogue offers runtimes, instance types and sizes; the checks say which of them hold this model and these prompts. Of those,
the setting of the published result is preferred for its own model, and the cheapest hour for any other.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import yaml

from experiment.catalogue.instances import GROUP_SIZES, INSTANCES, ZONES
from experiment.catalogue.models import FETCHED
from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.catalogue.published import DRAFT, REFERENCE, TARGET, WINDOW
from experiment.catalogue.runtimes import RUNTIMES
from experiment.finding import Finding, Misuse
from experiment.loading import judge
from experiment.model import Benchmark, Cluster, ExperimentFile, PromptsSection
from experiment.prompts import read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.instances import Instance
    from experiment.catalogue.models import Model

_TEMPLATE = Template(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_GATED = "\nweights:\n  token_secret: hf-token   # a Secret, key `token`: Hugging Face asks who fetches this model\n"
_ARMS = 2
_LENGTHS = [1024 * 2**power for power in range(6)]


@dataclass(frozen=True)
class Starter:
    """The text of an experiment file, and what was chosen in it and why, by subject."""

    text: str
    chosen: dict[str, str]


def compose(
    name: str, *, model: str, like: str | None = None, draft: str | None = None, prompts: Path, folder: Path
) -> Starter:
    """An experiment called `name`, for a file in `folder`. Raises `Misuse`."""
    base = _known(like or model, "--like" if like else "--model")
    target = replace(base, name=model, gated=False) if like else base
    drafting = _known(draft, "--draft") if draft else _draft_for(target)
    file = os.path.relpath(prompts, folder)
    asked, unread, format_ = read_prompts(PromptsSection(file=file), endpoint="chat", folder=folder)
    if unread:
        raise Misuse(*unread)
    classes = Counter(prompt.class_name for prompt in asked)
    largest = max(classes.values())
    given = {
        "name": _scalar(name),
        "model": _scalar(model),
        "like": f"  like: {like}   # the model of the catalogue that has its shape\n" if like else "",
        "file": _scalar(file),
        "requests": math.ceil(Benchmark().requests / largest) * largest,
    }
    refused = []
    for chosen in _candidates(target, drafting, published=base.name == TARGET):
        text = _TEMPLATE.substitute(given | chosen)
        _, found = judge(ExperimentFile.model_validate(yaml.safe_load(text)), asked, folder)
        if not found:
            text = re.sub(r"^(.*?\S)   # ", lambda match: f"{match[1]:<25}  # ", text, flags=re.MULTILINE)
            several = "es" if len(classes) > 1 else ""
            said = f"{len(asked)} of {len(classes)} class{several}, {format_}"
            return Starter(text, {**_reasons(target, chosen), "prompts": said})
        refused.append(found)
    if not refused:
        why = f"no runtime of the catalogue drafts for {target.architecture} with a model of its own"
        raise Misuse(f"{model}: {why}; write an arm with a head (docs/experiment-file.md)")
    raise Misuse(min(reversed(refused), key=len)[0])


def _scalar(text: str) -> str:
    """As YAML reads it back."""
    return yaml.safe_dump(text, allow_unicode=True, width=math.inf).removesuffix("...\n").rstrip("\n")


def _known(name: str, option: str) -> Model:
    if name in FETCHED:
        return FETCHED[name]
    close = difflib.get_close_matches(name, FETCHED, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(FETCHED)}."
    own = f" For a fine-tune add --like {close[0] if close else TARGET}; more in docs/adding-a-model.md"
    raise Misuse(
        Finding(option, name, "is not in the catalogue of models", hint + own * (option == "--model"))
    )


def _draft_for(target: Model) -> Model:
    """The smaller model of its family that is nearest to the published pair's ratio of sizes."""
    published = FETCHED[TARGET].parameters / FETCHED[DRAFT].parameters
    kin = [
        one
        for one in FETCHED.values()
        if one.tokenizer == target.tokenizer and one.parameters < target.parameters
    ]
    if not kin:
        raise Misuse(
            f"{target.name}: the catalogue has no smaller model of its family; choose a larger --model"
        )
    return min(kin, key=lambda model: abs(math.log(target.parameters / model.parameters / published)))


def _candidates(target: Model, draft: Model, *, published: bool) -> Iterator[dict[str, Any]]:
    """What may stand in the file, the best first."""
    ways = [
        (runtime.name, mode)
        for runtime in RUNTIMES.values()
        for mode, said in runtime.modes.items()
        if target.architecture in said.architectures
        and not (said.head or said.batch_only or runtime.lab_only)
    ]
    instances = [INSTANCES[name] for name in TRN2_ON_DEMAND]
    places = [(one, size) for one in instances for size in GROUP_SIZES if size <= one.devices]
    places.sort(key=lambda place: _preference(published, *place))
    for (runtime, mode), (instance, size), length in product(ways, places, _LENGTHS):
        region = Cluster().region if Cluster().region in instance.regions else min(instance.regions)
        yield {
            "draft": draft.name,
            "weights": _GATED if target.gated or draft.gated else "",
            "runtime": runtime,
            "mode": mode,
            "window": WINDOW,
            "devices": size,
            "length": length,
            "allocation": "dra" if instance.efa_interfaces else "device-plugin",
            "instance": instance.name,
            "region": region,
            "zones": ", ".join(ZONES[region][:2]),
            "nodes": _nodes(instance, size),
            "why": "the cheapest that holds both arms"
            if _preference(published, instance, size)[0]
            else "as published",
        }


def _preference(published: bool, instance: Instance, size: int) -> tuple[bool, float, int]:
    """The published setting for the published model; else the cheapest hour, and the most chips for the money."""
    as_published = published and (REFERENCE.instance, REFERENCE.chips) == (instance.name, size)
    return not as_published, _usd_per_hour(instance, size), -size


def _nodes(instance: Instance, size: int) -> int:
    return math.ceil(_ARMS * size / instance.devices)


def _usd_per_hour(instance: Instance, size: int) -> float:
    return TRN2_ON_DEMAND[instance.name].usd_per_hour * _nodes(instance, size)


def _reasons(target: Model, chosen: dict[str, Any]) -> dict[str, str]:
    devices, usd = chosen["devices"], _usd_per_hour(INSTANCES[chosen["instance"]], chosen["devices"])
    return {
        "draft": f"{chosen['draft']}, {WINDOW} tokens a step: a smaller model with the same tokenizer; the window was published",
        "runtime": f"{chosen['runtime']}, mode {chosen['mode']}: it drafts for {target.architecture} with a whole model",
        "hardware": f"{chosen['nodes']} x {chosen['instance']} in {chosen['region']}, {devices} chip{'s' * (devices > 1)} an arm, "
        f"${usd:.2f} an hour: {chosen['why']}",
        "context": f"{chosen['length']} tokens: the longest prompt and its answer fit",
    }
