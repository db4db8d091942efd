"""Resolve a file to arms: each name is looked up once in the catalogue, and each combination of a sweep is an arm with its own name.

A name that the catalogue lacks is a problem. Each arm keeps the paths of its values in the file, for the rules.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from trnspec.core.files import UnreadableFile, text_of
from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.arms import Arm, ArmServing, Experiment, Paths, Speculation, Weights, logical_cores
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.models import HEADS, MODELS, Model, head
from trnspec.experiment.catalogue.runtimes import MODES, RUNTIMES
from trnspec.experiment.model import ArmSection, DraftReference, ExperimentFile, ModelReference
from trnspec.experiment.model_config import head_sizes, own_models
from trnspec.experiment.naming import slug
from trnspec.experiment.prompts import Prompt, expected_tokens
from trnspec.experiment.refusals import refused

MAX_ARMS = 128
"""More arms than anybody can pay for, and few enough to check quickly."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
_EXPERTS = re.compile(
    r"-a\d+(\.\d+)?[bm]\b|\d+x\d+|mixtral|moe|gpt-oss|deepseek-(v[23]|r1$)|llama-4|maverick|scout",
    re.IGNORECASE,
)
"""Names of mixtures of experts."""
QUANTIZED = re.compile(
    r"[-_.](fp8|fp4|nvfp4|mxfp4|awq|gptq|gguf|int[48]|w\d+a\d+|bnb|[48]-?bit|quantized)(?![a-z])",
    re.IGNORECASE,
)
"""Names of quantized checkpoints."""
_OWN_MODEL = (
    " For a fine-tune add `like: {}`, for another model `config:` with the path of its config.json: "
    "docs/models.md"
)


@dataclass(frozen=True)
class _Sweep:
    """One arm of the file with the values of its lists, each with its path."""

    number: int
    section: ArmSection
    drafts: list[tuple[str, DraftReference]]
    windows: list[tuple[str, int]]


def resolved(
    file: ExperimentFile, prompts: tuple[Prompt, ...], folder: Path, prompt_format: str
) -> tuple[Experiment | None, list[Finding]]:
    """Return the experiment, with every value that a list repeats and a chat template that cannot be used; no experiment if a name is unknown or
    there are too many arms."""
    problems, repeated = [*_unknown_names(file)], list[Finding]()
    if not file.arms:
        problems.append(refused("arms too-few", None, number=0))
    sizes = _values(file.serving.max_num_seqs, "serving.max_num_seqs", repeated)
    sweeps = [_sweep(number, arm, repeated) for number, arm in enumerate(file.arms)]
    total = len(sizes) * sum(len(one.drafts) * len(one.windows) or 1 for one in sweeps)
    if total > MAX_ARMS:
        problems.append(refused("arms too-many", None, arms=count(total, "arm"), maximum=MAX_ARMS))
    weights, unusable = _weights(file.target, [draft for one in sweeps for draft in one.drafts], folder)
    if problems := [*problems, *unusable]:
        return None, problems + repeated
    template, unread = _chat_template(file.serving.chat_template, folder)
    shared = _serving(file, sweeps, prompts) | {"chat_template": template}
    return Experiment(
        name=file.name,
        description=file.description,
        arms=tuple(
            arm
            for place, (_, size) in enumerate(sizes)
            for one in sweeps
            for arm in _arms(file, one, weights, shared | {"max_num_seqs": size}, f"-b{size}" * bool(place))
        ),
        prompts=prompts,
        prompt_format=prompt_format,
        benchmark=file.benchmark,
        cluster=file.cluster,
        token_secret=file.weights.token_secret,
        serve=file.serve,
        expect=file.expect,
    ), repeated + unread


def _unknown_names(file: ExperimentFile) -> Iterator[Finding]:
    """Runtimes, instance type and modes must be in the catalogue."""
    yield from unknown_name("runtime", file.runtime, RUNTIMES, "runtime")
    yield from unknown_name("cluster.instance", file.cluster.instance, INSTANCES, "instance type")
    for number, arm in enumerate(file.arms):
        if arm.runtime is not None:
            yield from unknown_name(f"arms[{number}].runtime", arm.runtime, RUNTIMES, "runtime")
        if arm.speculation is not None and arm.speculation.mode not in MODES:
            path = f"arms[{number}].speculation.mode"
            yield refused("mode unknown", arm.speculation.mode, at=path, modes=", ".join(MODES))


def unknown_name(
    path: str, name: str, catalogue: Collection[str], what: str, own: str = "", *, never: str = ""
) -> Iterator[Finding]:
    """Yield a finding if the catalogue has no such name. `own` describes alternatives; {} becomes the closest name, or NAME.

    `never` is not suggested: the target of a draft.
    """
    if name in catalogue:
        return
    if what == "model" and _EXPERTS.search(name):
        yield refused("catalogue experts", name, at=path)
        return
    names = [one for one in catalogue if one != never]
    close = difflib.get_close_matches(name, names, n=1)
    if what == "model" and QUANTIZED.search(name):
        yield refused("catalogue quantized", name, at=path, hint=f", as {close[0]}" if close else "")
        return
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}{'.' if own else ''}"
    hint += own.format(close[0] if close else "NAME")
    yield refused("catalogue unknown", name, at=path, what=what, hint=hint)


def _sweep(number: int, arm: ArmSection, problems: list[Finding]) -> _Sweep:
    speculation, path = arm.speculation, f"arms[{number}].speculation"
    if speculation is None:
        return _Sweep(number, arm, [], [])
    windows = _values(speculation.num_speculative_tokens, f"{path}.num_speculative_tokens", problems)
    return _Sweep(number, arm, _values(speculation.draft, f"{path}.draft", problems), windows)


def _values(value: Any, path: str, problems: list[Finding]) -> list[tuple[str, Any]]:
    """Return each value of a sweep with its path. A value that is listed twice is a problem."""
    if not isinstance(value, list):
        return [(path, value)]
    found: list[tuple[str, Any]] = []
    for number, one in enumerate(value):
        if one in value[:number]:
            shown = one if isinstance(one, int) else one.model
            problems.append(refused("sweep twice", shown, at=f"{path}[{number}]"))
        else:
            found.append((f"{path}[{number}]", one))
    return found


def _weights(
    target: ModelReference, drafts: list[tuple[str, DraftReference]], folder: Path
) -> tuple[dict[str, Weights], list[Finding]]:
    """Return every model that the file names, by its path, and what is wrong with its name or description."""
    references: list[tuple[str, ModelReference]] = [("target", target), *drafts]
    models, problems = MODELS, list[Finding]()
    if any(one.like or one.config is not None for _, one in references):
        models, problems = own_models(references, folder)
    found = dict[str, Weights]()
    for path, reference in references:
        unknown = [*_unknown_model(path, reference, models, target)]
        problems += unknown
        try:
            model = None if unknown else _described(reference, models, folder)
        except UnreadableFile as error:
            problems.append(refused("config unreadable", reference.config, at=f"{path}.config", error=error))
            continue
        if model is not None:
            found[path] = Weights(
                model=model,
                revision=reference.revision,
                shape_of=None if model.head_for else reference.like or reference.config,
                address=reference.weights and reference.weights.rstrip("/"),
            )
    return found, problems


def _unknown_model(
    path: str, reference: ModelReference, models: Mapping[str, Model], target: ModelReference
) -> Iterator[Finding]:
    """Models must be in the catalogue, or be described in exactly one way."""
    shapes = {key: getattr(reference, key, None) for key in ("like", "config", "head_for")}
    if shapes["head_for"] is not None:
        del shapes["config"]  # of the head itself
    first, *more = [key for key, value in shapes.items() if value is not None] or ["model"]
    if first == "like" and not more and QUANTIZED.search(reference.model):
        # `like` is about the shape; a `config` says itself whether the weights are quantized.
        yield refused(
            "catalogue quantized", reference.model, at=f"{path}.model", hint=f", as {reference.like}"
        )
    if more:
        yield refused("shape twice", shapes[more[0]], at=f"{path}.{more[0]}", first=first)
    elif first == "like":
        yield from unknown_name(f"{path}.like", str(reference.like), MODELS, "model")
    elif first == "head_for" and shapes[first] == target.model:
        return  # told of the target, if it is unknown
    elif first == "head_for":
        yield from unknown_name(f"{path}.head_for", str(shapes[first]), models, "model")
    elif first == "model" and reference is not target and reference.model in HEADS:
        known_target = HEADS[reference.model].target
        yield refused("model head-alone", reference.model, at=f"{path}.model", target=known_target)
    elif first == "model":
        never = "" if reference is target else target.model
        yield from unknown_name(f"{path}.model", reference.model, models, "model", _OWN_MODEL, never=never)


def _described(reference: ModelReference, models: Mapping[str, Model], folder: Path) -> Model | None:
    """Return the description of a model. A head has the shape of the target that it was trained for, unless its `config.json` says
    another. Raises `UnreadableFile`."""
    if isinstance(reference, DraftReference) and reference.head_for is not None:
        if reference.head_for not in models:
            return None
        own = head(reference.model, target=models[reference.head_for], layers=reference.head_layers)
        return own if reference.config is None else replace(own, **head_sizes(folder / reference.config))
    return models.get(reference.model)


def _serving(file: ExperimentFile, sweeps: list[_Sweep], prompts: tuple[Prompt, ...]) -> dict[str, Any]:
    """Return the serving settings that all arms share, with the expected lengths of the load.

    If the file expects published figures, decoding is compiled only for the whole context, as it was for them: no
    published command line sets the key.
    """
    serving, instance = file.serving, INSTANCES[file.cluster.instance]
    degree = serving.tensor_parallel or logical_cores(serving, instance)
    shared: dict[str, Any] = dict(serving) | {"tensor_parallel": degree}
    runtimes = [RUNTIMES[one.section.runtime or file.runtime] for one in sweeps]
    if all(runtime.dialect != "native" for runtime in runtimes):
        return shared
    prompt, sequence = expected_tokens(prompts, answer=file.benchmark.max_tokens)
    step = 1 + max((window for one in sweeps for _, window in one.windows), default=0)
    published = file.expect is not None and bool(file.expect.figures)
    return shared | {"prompt_tokens": prompt, "sequence_tokens": 0 if published else sequence + step}


_MAX_TEMPLATE_BYTES = 100_000


def _chat_template(name: str | None, folder: Path) -> tuple[str | None, list[Finding]]:
    """Return the text of a chat template, or why it cannot be used."""
    if name is None:
        return None, []
    try:
        text = text_of(folder / name, max_bytes=_MAX_TEMPLATE_BYTES)
        why = _template_problem(text)
    except UnreadableFile as error:
        text, why = "", str(error)
    return (None, [refused("serving.chat_template unusable", name, why=why)]) if why else (text, [])


def _template_problem(text: str) -> str:
    """Return why vLLM would answer every request with an error, or all alike; empty for a template that can work."""
    from jinja2 import Environment, TemplateSyntaxError  # of such a file alone

    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except TemplateSyntaxError as error:
        if "unknown tag" not in str(error):  # transformers adds tags, as `generation`
            return f"is not a Jinja template: {error} (line {error.lineno})"
    return "" if "messages" in text else "does not use `messages`, so no prompt would reach the model"


def _arms(
    file: ExperimentFile, one: _Sweep, weights: Mapping[str, Weights], serving: dict[str, Any], suffix: str
) -> Iterator[Arm]:
    """Yield the arms that one arm of the file makes with one batch size, drafts first, then windows; their names end with `suffix`."""
    section, at = one.section, f"arms[{one.number}]"
    runtime, runtime_at = RUNTIMES[section.runtime or file.runtime], f"{at}.runtime"
    if runtime.dialect != "native":  # only its graphs are compiled for the lengths of the load
        serving = serving | {"prompt_tokens": 0, "sequence_tokens": 0}
    common: dict[str, Any] = {
        "target": weights["target"],
        "runtime": runtime,
        "instance": INSTANCES[file.cluster.instance],
        "serving": ArmServing.model_construct(**serving),
        "engine": section.engine,
        "scheduler": section.scheduler,
    }
    paths = Paths(at=at, runtime=runtime_at if section.runtime else "runtime")
    if (speculation := section.speculation) is None:
        yield Arm(name=section.name + suffix, speculation=None, paths=paths, **common)
        return
    names = _short_names([draft for _, draft in one.drafts]) if isinstance(speculation.draft, list) else [""]
    several = isinstance(speculation.num_speculative_tokens, list)
    for (short, (draft_at, _)), (window_at, window) in product(
        zip(names, one.drafts, strict=True), one.windows
    ):
        added = f"-{short}" * bool(short) + f"-k{window}" * several
        yield Arm(
            name=section.name + added + suffix,
            speculation=Speculation(
                mode=speculation.mode,
                draft=weights[draft_at],
                num_speculative_tokens=window,
                draft_max_model_len=speculation.draft_max_model_len or file.serving.max_model_len,
            ),
            paths=Paths(at=at, runtime=paths.runtime, draft=draft_at, window=window_at),
            **common,
        )


def _short_names(drafts: list[DraftReference]) -> list[str]:
    """Return `0-6b` for Qwen/Qwen3-0.6B if the sizes of the drafts differ, otherwise the last part of the name."""
    lasts = [draft.model.rsplit("/", 1)[-1] for draft in drafts]
    sizes = [match[0] if (match := _SIZE.search(last)) else "" for last in lasts]
    return [slug(text) for text in (sizes if all(sizes) and len(set(sizes)) == len(sizes) else lasts)]
