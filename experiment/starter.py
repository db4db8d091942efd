"""A first experiment for a model and its prompts: short, with comments, and right by every check.

The catalogue offers runtimes, instance types and sizes; the checks say which of them hold this model and these prompts. Of those,
the setting of the published result is preferred for its own model, and the cheapest hour for any other.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import replace
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
from experiment.checks.names import known
from experiment.finding import Finding, Misuse
from experiment.loading import judge
from experiment.model import Benchmark, Cluster, ExperimentFile, PromptsSection
from experiment.prompts import read_prompts, replayed, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model

_TEXT = Template(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_GATED = "\nweights:\n  token_secret: hf-token   # a Secret, key `token`: Hugging Face asks who fetches this model\n"
_REASONS = {
    "draft": "{draft}, {window} tokens a step; {because}",
    "runtime": "{runtime}, mode {mode}: it drafts with a whole model",
    "hardware": "{nodes} x {instance} in {region}, chips an arm: {devices}, ${usd:.2f} an hour; {why}",
    "context": "{length} tokens: the longest prompt and its answer fit",
    "prompts": "{prompts}",
}
_LENGTHS = [1024 * 2**power for power in range(6)]


def compose(
    name: str, *, model: str, like: str | None = None, draft: str | None = None, prompts: Path, folder: Path
) -> tuple[str, dict[str, str]]:
    """The text of an experiment called `name`, for a file in `folder`, and what was chosen and why. Raises `Misuse`."""
    base = _known("--like", like) if like else _known("--model", model)
    target = replace(base, name=model, gated=False) if like else base
    drafting = _known("--draft", draft) if draft else _draft_for(target)
    file = os.path.relpath(prompts, folder)
    asked, unread, format_ = read_prompts(PromptsSection(file=file), endpoint="chat", folder=folder)
    if unread:
        raise Misuse(*unread)
    classes = Counter(prompt.class_name for prompt in asked)
    (_, largest), *_ = classes.most_common()
    given = {
        "name": _scalar(name),
        "model": _scalar(model),
        "like": f"  like: {like}   # the model of the catalogue that has its shape\n" if like else "",
        "weights": _GATED if target.gated or drafting.gated else "",
        "draft": drafting.name,
        "because": "as you asked"
        if draft
        else "of its family, nearest to the published pair's ratio of sizes",
        "window": WINDOW,
        "requests": math.ceil(Benchmark().requests / largest) * largest,
        "file": _scalar(file),
        "prompts": f"{len(asked)} of {len(classes)} class{'es' * (len(classes) > 1)}, {format_}",
    }
    # A replay brings its own load.
    own_load = (
        r"^  (concurrency|requests): .*\n"
        if timed(asked)
        else r"^  requests: .*\n"
        if replayed(asked)
        else r"(?!)"
    )
    refused = []
    for place in _places(target, as_published=base.name == TARGET):
        chosen = given | place
        text = re.sub(own_load, "", _TEXT.substitute(chosen), flags=re.MULTILINE)
        _, found = judge(ExperimentFile.model_validate(yaml.safe_load(text)), asked, folder)
        if not found:
            text = re.sub(r"^(.*?\S)   # ", lambda match: f"{match[1]:<25}  # ", text, flags=re.MULTILINE)
            return text, {subject: reason.format(**chosen) for subject, reason in _REASONS.items()}
        refused.append(found)
    none = [Finding("--model", model, "no runtime drafts for it with a whole model", "choose another")]
    raise Misuse(min(reversed(refused), key=len, default=none)[0])


def _scalar(text: str) -> str:
    """As YAML reads it back."""
    return yaml.safe_dump(text, allow_unicode=True, width=math.inf).removesuffix("...\n").rstrip("\n")


def _known(option: str, name: str) -> Model:
    own = " For a fine-tune add --like {}; more in docs/adding-a-model.md" if option == "--model" else ""
    for finding in known(option, name, FETCHED, "model", own):
        raise Misuse(finding)
    return FETCHED[name]


def _draft_for(target: Model) -> Model:
    published = FETCHED[TARGET].parameters / FETCHED[DRAFT].parameters
    family = [one for one in FETCHED.values() if one.tokenizer == target.tokenizer]
    by_distance = {
        abs(math.log(target.parameters / one.parameters / published)): one
        for one in family
        if one.parameters < target.parameters
    }
    if not by_distance:
        why = "is the smallest of its family in the catalogue, so nothing can draft for it"
        raise Misuse(Finding("--model", target.name, why, "choose a larger one"))
    return by_distance[min(by_distance)]


def _places(target: Model, *, as_published: bool) -> Iterator[dict[str, Any]]:
    """Runtime, hardware and context that may hold two arms, the best first."""
    ways = [
        {"runtime": runtime.name, "mode": name}
        for runtime in RUNTIMES.values()
        for name, mode in runtime.modes.items()
        if target.architecture in mode.architectures
        and not (mode.head or mode.batch_only or runtime.lab_only)
    ]
    hardware = []
    for instance, size in product(map(INSTANCES.__getitem__, TRN2_ON_DEMAND), GROUP_SIZES):
        nodes = math.ceil(2 * size / instance.devices)
        usd = nodes * TRN2_ON_DEMAND[instance.name].usd_per_hour
        published = as_published and (REFERENCE.instance, REFERENCE.chips) == (instance.name, size)
        region = Cluster().region if Cluster().region in instance.zones else next(iter(instance.zones))
        if size > instance.devices:
            continue
        place = {
            "instance": instance.name,
            "devices": size,
            "nodes": nodes,
            "usd": usd,
            "region": region,
            # The nodes stand in the first; EKS wants a second.
            "zones": ", ".join([*dict.fromkeys((*instance.zones[region], *ZONES[region]))][:2]),
            "allocation": "dra" if instance.efa_attached else "device-plugin",
            "why": "as published" if published else "the cheapest that holds both arms",
        }
        hardware.append(((not published, usd, -size), place))
    hardware.sort(key=lambda one: one[0])
    for way, (_, place), length in product(ways, hardware, _LENGTHS):
        yield {**way, **place, "length": length}
