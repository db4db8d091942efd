"""Write a first experiment for a model and its prompts: a short file with comments that passes all checks.

The catalogue offers runtimes, modes, drafts, instance types and sizes; the checks decide which of them fit this model and these
prompts. Of those, a supported image is preferred to one whose support ends. A model with a published result gets the setting of
that result, any other model the cheapest hardware.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import yaml

from trnspec.core.findings import Finding, Misuse
from trnspec.core.words import count, listed
from trnspec.experiment.arm_forecast import expected
from trnspec.experiment.catalogue.instances import GROUP_SIZES, INSTANCES, ZONES
from trnspec.experiment.catalogue.models import HEADS, MODELS, Model
from trnspec.experiment.catalogue.prices import BLOCK_RATES, spot_rates
from trnspec.experiment.catalogue.published import DRAFT, DRAFTED, PLAIN, REFERENCE, TARGET, WINDOW, Drafted
from trnspec.experiment.catalogue.runtimes import HEAD_MODES, MODES, RUNTIMES, Runtime
from trnspec.experiment.cost import run_hours
from trnspec.experiment.loading import run_checks
from trnspec.experiment.model import Benchmark, ExperimentFile, PromptsSection
from trnspec.experiment.prompts import Prompt, read_prompts
from trnspec.experiment.refusals import is_quantized, refused, unknown_name
from trnspec.experiment.run_price import file_prices, price_text

_TEXT = Template(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_GATED = "token_secret: hf-token   # a Secret, key `token`: Hugging Face asks who fetches this model\n"
_REASONS = {
    "draft": "{draft}, {window} draft tokens; {because}",
    "runtime": "{runtime}, mode {mode}",
    "hardware": "{nodes} x {instance} in {zone}, chips per arm: {devices}; {why}",
    "context": "{length} tokens: the longest prompt and its answer fit{bound}",
    "prompts": "{prompts}",
    "price": "{price}",
}
_WORTH_COUNTING = 1024
"""Bytes of a prompt from which counting its tokens saves context."""
_LENGTHS = [1024 * 2**power for power in range(6)]
_LOADS = {"eagle3": "[1, 2]", "dflash": "[1, 4]"}
"""Concurrent requests for which drafted steps of a mode are published."""
_HEAD_WINDOW = 3
"""The number of drafted tokens in AWS's EAGLE3 tutorial; used unless the training of a head fixes another number."""


@dataclass(frozen=True, kw_only=True)
class StarterExperiment:
    """A first experiment with the reasons for its settings."""

    text: str
    why: str
    """The choice, its reason and the alternative, on one line."""
    chosen: dict[str, str]
    """Every choice with its reason."""
    emulated: bool
    """Whether the steps of its arms can be predicted; without them a demonstration would borrow those of another model."""


@dataclass(frozen=True, kw_only=True)
class _Route:
    """A draft for a target, with the runtime and the mode that serve it."""

    runtime: Runtime
    mode: str
    draft: str
    because: str
    head: bool = False

    def text(self, base: str) -> str:
        """Return the mode, the draft, the support of the image, and the published results."""
        support = self.runtime.end_of_support or "recommended by AWS"
        gains: dict[int, list[float]] = {}
        for row in _published(base, self.mode):
            if self.head or row.draft == self.draft:
                gains.setdefault(row.concurrency, []).append(row.plain_tpot_s / row.tpot_s)
        results = [
            f"{' to '.join(dict.fromkeys(f'{gain:.2g}' for gain in (min(some), max(some))))} times as fast at {load}"
            for load, some in sorted(gains.items())
        ]
        published = f"published: {listed(results)} concurrent requests"
        published = published if results else "no result of this draft on Trn2 is published"
        return f"{self.mode} with {self.draft} on {self.runtime.name} ({support}; {published})"


Rejected = Sequence[tuple[_Route, list[Finding]]]


def _published(base: str, mode: str) -> list[Drafted]:
    plain = {row.row for row in PLAIN if row.model.name == base}
    return [row for row in DRAFTED if row.mode == mode and row.base in plain]


def compose(
    name: str,
    *,
    model: str,
    prompts: Path,
    folder: Path,
    like: str | None = None,
    draft: str | None = None,
    mode: str | None = None,
    runtime: str | None = None,
    ignore: Sequence[str] = (),
) -> StarterExperiment:
    """Compose an experiment called `name`, for a file in `folder`. Raises `Misuse`."""
    own = "" if like else " For a fine-tune add --like {}; more in docs/models.md"
    if like and is_quantized(model):
        raise Misuse(refused("catalogue quantized", model, at="--model", hint=f", as {like}"))
    if (known := like or model) not in MODELS:
        raise Misuse(unknown_name("--like" if like else "--model", known, MODELS, "model", own))
    base = MODELS[known]
    target = replace(base, name=model, gated=False) if like else base
    routes = _routes(target, base.name, draft=draft, mode=mode, runtime=runtime)
    file = os.path.relpath(prompts, folder)
    section = PromptsSection(file=file, ignore=tuple(ignore))
    asked, unread, format_ = read_prompts(section, Benchmark(), folder)
    if unread:
        raise Misuse(*unread)
    classes = Counter(prompt.class_name for prompt in asked)
    (_, largest), *_ = classes.most_common()
    given = {
        "name": _scalar(name),
        "model": _scalar(model),
        "like": f"  like: {like}   # the model of the catalogue that has its shape\n" if like else "",
        "requests": math.ceil(Benchmark().requests / largest) * largest,
        "file": _scalar(file),
        "ignore": f"  ignore: [{', '.join(map(_scalar, ignore))}]   # keys of its entries that are not sent\n"
        if ignore
        else "",
        "bound": _bound(asked),
        "prompts": f"{len(asked)} of {count(len(classes), 'class')}, {format_}",
    }
    found: list[tuple[_Route, str, dict[str, Any]]] = []
    rejected: list[tuple[_Route, list[Finding]]] = []
    for route in routes:
        for place in _places(base.name, route.mode):
            chosen = given | _filled(route, target) | place
            text = _TEXT.substitute(chosen)
            file = ExperimentFile.model_validate(yaml.load(text, Loader=yaml.CSafeLoader))
            experiment, problems = run_checks(file, asked, folder, format_)
            if experiment and not problems:
                chosen["price"] = f"a first run: {price_text(file_prices(experiment, run_hours(experiment)))}"
                known = any(
                    row.num_speculative_tokens == chosen["window"]
                    for row in _published(base.name, route.mode)
                )
                steps = (one.drafted.likely for one in expected(experiment) if one.drafted)
                chosen["emulated"] = known or None not in steps
                text = re.sub(r"^(.*?\S)   # ", lambda match: f"{match[1]:<25}  # ", text, flags=re.MULTILINE)
                found.append((route, text, chosen))
                break
            rejected.append((route, problems))
        if len(found) == 2:
            break
    if not found:
        raise Misuse(min((problems for _, problems in reversed(rejected)), key=len)[0])
    route, text, chosen = found[0]
    return StarterExperiment(
        text=text,
        why=_why(base.name, [route for route, *_ in found], rejected, asked=bool(draft or mode or runtime)),
        emulated=chosen["emulated"],
        chosen={subject: reason.format(**chosen) for subject, reason in _REASONS.items()},
    )


def _why(base: str, found: list[_Route], rejected: Rejected, *, asked: bool) -> str:
    route, *others = found
    parts = [route.text(base) + (", as you asked" if asked else "")]
    if route.runtime.end_of_support and not asked:
        better = [(other, problems) for other, problems in rejected if not other.runtime.end_of_support]
        if better:
            other, problems = min(reversed(better), key=lambda one: len(one[1]))
            parts.append(f"not {other.mode} on {other.runtime.name}: {problems[0].why}")
        else:
            parts.append(f"a supported image drafts with heads only, and the catalogue has none for {base}")
    for other in others:
        option = "" if other.mode != route.mode else f"--runtime {other.runtime.name}, that is "
        parts.append(f"alternative: {option or '--mode '}{other.text(base)}")
    return "; ".join(parts)


def _bound(asked: Sequence[Prompt]) -> str:
    """Return how to count tokens, if the length of the longest prompt is only known in bytes."""
    longest = max(asked, key=lambda prompt: prompt.max_prompt_tokens)
    if longest.tokens is not None or longest.max_prompt_tokens < _WORTH_COUNTING:
        return ""
    return (
        f", by its {longest.utf8_bytes:,} bytes, about {longest.likely_tokens:,} tokens; to compile less, count them and write "
        "`tokens` into the file (docs/models.md)"
    )


def _scalar(text: str) -> str:
    """Return the text as a YAML scalar."""
    return yaml.safe_dump(text, allow_unicode=True, width=math.inf).removesuffix("...\n").rstrip("\n")


def _routes(
    target: Model, base: str, *, draft: str | None, mode: str | None, runtime: str | None
) -> list[_Route]:
    """Return the possible drafts, supported images first. Options of the user are kept; the checks judge them. Raises `Misuse`."""
    if runtime is not None and runtime not in RUNTIMES:
        raise Misuse(unknown_name("--runtime", runtime, RUNTIMES, "runtime"))
    if mode is not None and mode not in MODES:
        raise Misuse(refused("--mode unknown", mode, modes=", ".join(MODES)))
    ways = [one.modes[mode] for one in RUNTIMES.values()] if mode is not None else []
    if ways and not any(way.architectures for way in ways):
        raise Misuse(refused("--mode no-server", mode, mode=ways[0]))
    if draft is not None:
        mode = _mode_of(draft, mode, target)
    able = [
        (one, name, of)
        for one in sorted(RUNTIMES.values(), key=lambda one: sum(entry.ends for entry in one.support))
        for name, of in one.modes.items()
        if runtime in (None, one.name) and mode in (None, name)
    ]
    fit = [one for one in able if target.architecture in one[2].architectures]
    routes = [
        route
        for one, name, _ in (fit if mode is None else fit or able)
        for route in _drafts(target, base, one, name, draft)
    ]
    if routes:
        return routes
    if mode in HEAD_MODES:
        others = [head.target for head in HEADS.values() if head.mode == mode and head.target in MODELS]
        remedy = f"it has one for {listed(others)}" if others else "name one with --draft OWNER/NAME"
        raise Misuse(refused("--mode no-head", mode, base=base, remedy=remedy))
    if runtime is None:
        raise Misuse(refused("--model smallest", target.name))
    raise Misuse(refused("--model no-head", target.name, runtime=runtime))


def _mode_of(draft: str, mode: str | None, target: Model) -> str | None:
    """Return the mode of a head, or the requested mode for a separate model. Raises `Misuse` for an unknown draft."""
    if draft in HEADS:
        return mode or HEADS[draft].mode
    if draft not in MODELS and mode == "dflash":
        raise Misuse(refused("--draft unknown-window", draft))
    if draft not in MODELS and mode not in HEAD_MODES:
        head = " For another head add its --mode" if mode is None else ""
        raise Misuse(unknown_name("--draft", draft, (*MODELS, *HEADS), "model", head, never=target.name))
    return mode


def _drafts(target: Model, base: str, runtime: Runtime, mode: str, draft: str | None) -> Iterator[_Route]:
    with_head = mode in HEAD_MODES and draft not in MODELS
    if with_head:
        because = f"a head that was trained for {base}"
        heads = [head.name for head in HEADS.values() if (head.target, head.mode) == (base, mode)]
        names = [draft] if draft else heads
    elif draft is not None:
        names, because = [draft] if draft in MODELS else [], "as you asked"
    else:
        names = [small.name for small in _small_drafts(target, base)[:1]]
        because = "the model of its family that was published with it, or whose size is nearest to the published ratio"
    for name in names:
        yield _Route(runtime=runtime, mode=mode, draft=name, because=because, head=with_head)


def _small_drafts(target: Model, base: str) -> list[Model]:
    """Return smaller models of the same family, the most suitable first."""
    ratio = MODELS[TARGET].parameters / MODELS[DRAFT].parameters
    published = {row.draft for row in _published(base, "fused")}
    family = (one for one in MODELS.values() if one.tokenizer == target.tokenizer)
    return sorted(
        (one for one in family if one.parameters < target.parameters),
        key=lambda one: (
            one.name not in published,
            abs(math.log(target.parameters / one.parameters / ratio)),
        ),
    )


def _filled(route: _Route, target: Model) -> dict[str, Any]:
    """Return the values of the template that depend on the route."""
    gated = target.gated or (route.draft in MODELS and MODELS[route.draft].gated)
    trained = HEADS[route.draft].speculative_tokens if route.draft in HEADS else None
    window, windows = WINDOW, "[3, 5, 7] would be three arms"
    if route.head:
        window, windows = _HEAD_WINDOW, "[2, 3] would be two arms"
    return {
        "token": _GATED if gated else "",
        "runtime": route.runtime.name,
        "mode": route.mode,
        "draft": _scalar(route.draft),
        "window": trained or window,
        "windows": "fixed by its training" if trained else windows,
        "concurrency": _LOADS.get(route.mode, "[4]"),
        "because": route.because,
    }


def _places(base: str, mode: str) -> Iterator[dict[str, Any]]:
    """Yield hardware and context lengths that may hold two arms: published settings first, then the cheapest."""
    hardware: list[tuple[Any, dict[str, Any]]] = []
    for instance, size in product(map(INSTANCES.__getitem__, BLOCK_RATES), GROUP_SIZES):
        if size > instance.devices:
            continue
        nodes = math.ceil(2 * size / instance.devices)
        usd = nodes * BLOCK_RATES[instance.name].usd_per_hour
        spot = min(spot_rates(instance.name), key=lambda rate: rate.usd_per_hour)
        published = base == TARGET and (REFERENCE.instance, REFERENCE.chips) == (instance.name, size)
        why = "as in a published result of this model" if published else "the cheapest that holds both arms"
        place = {
            "instance": instance.name,
            "devices": size,
            "nodes": nodes,
            "usd": usd,
            "region": spot.region,
            "zone": spot.zone,
            # Nodes run in the first zone, of which the price is; EKS requires a second.
            "zones": ", ".join([*dict.fromkeys((spot.place, *ZONES[spot.region]))][:2]),
            "allocation": "dra" if instance.efa_attached else "device-plugin",
            "why": why,
        }
        hardware.append(((not published, usd, -size), place))
    hardware.sort(key=lambda one: one[0])
    plain_rows = {row.base for row in _published(base, mode)}
    contexts = {row.compiled_tokens for row in PLAIN if row.row in plain_rows}
    lengths = sorted(_LENGTHS, key=lambda one: one not in contexts)
    for (_, place), length in product(hardware, lengths):
        yield {**place, "length": length}
