"""Load an experiment file in one direction: read it, check its form, resolve its names once to arms, and check what the values mean.

Each stage needs the one before, so a refusal has all problems of one stage. Each arm keeps the paths of its values in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from trnspec.benchmark.plan_limits import MAX_ARMS
from trnspec.core.files import UnreadableFile, text_of
from trnspec.core.findings import Finding, InvalidExperiment, Misuse
from trnspec.core.words import count
from trnspec.core.yaml_file import read_yaml
from trnspec.experiment import arm_rules, benchmark_rules, node_rules
from trnspec.experiment.arms import Arm, ArmServing, Experiment, Paths, Speculation, Weights, logical_cores
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.models import HEADS, MODELS, Model, head
from trnspec.experiment.catalogue.runtimes import HEAD_MODES, MODES, RUNTIMES
from trnspec.experiment.compilation import compile_config
from trnspec.experiment.model import ArmSection, ExperimentFile, ModelReference
from trnspec.experiment.model_config import head_sizes, own_models
from trnspec.experiment.naming import slug
from trnspec.experiment.prompts import Prompt, expected_tokens, read_prompts
from trnspec.experiment.refusals import form_problems, is_quantized, refused, unknown_name

_SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
_OWN_MODEL = (
    " For a fine-tune add `like: {}`, for another model `config:` with the path of its config.json: "
    "docs/models.md"
)


def load(path: Path) -> Experiment:
    """Read an experiment file, check it, and resolve it.

    Raises `InvalidExperiment` with every problem of its form, or else with every problem of its values.
    """
    try:
        document, lines, problems = read_yaml(path)
    except Misuse as error:
        raise InvalidExperiment(str(path), error.findings, {}) from None
    try:
        file = ExperimentFile.model_validate(document)
    except ValidationError:
        raise InvalidExperiment(str(path), problems + form_problems(document), lines) from None
    if problems:
        raise InvalidExperiment(str(path), problems, lines)
    prompts, unread, prompt_format = read_prompts(file.prompts, file.benchmark, path.parent)
    experiment, problems = run_checks(file, prompts, path.parent, prompt_format)
    problems += unread
    if experiment is None or problems:
        raise InvalidExperiment(str(path), problems, lines)
    return replace(experiment, path=path)


def run_checks(
    file: ExperimentFile, prompts: tuple[Prompt, ...], folder: Path, prompt_format: str
) -> tuple[Experiment | None, list[Finding]]:
    """Return the resolved experiment and the problems of its values. Paths in the file are relative to `folder`.

    If a name is unknown, there is no experiment, and only the cluster is checked beside the names.
    """
    experiment, problems = _resolved(file, prompts, folder, prompt_format)
    if experiment is None:
        return None, problems + [one for rule in node_rules.CLUSTER_RULES for one in rule(file.cluster)]
    # Arms of one sweep share the text of the file, so each problem is reported once: for the
    # first of them, which has the shortest name.
    distinct = {
        (problem.where, problem.why, problem.where.endswith("].name") or repr(problem.value)): problem
        for problem in reversed([*problems, *_broken_rules(experiment)])
    }
    return experiment, list(reversed(distinct.values())) or [*_engines_without_effect(experiment)]


def _broken_rules(experiment: Experiment) -> Iterator[Finding]:
    for rule in (*arm_rules.RULES, *node_rules.RULES, *benchmark_rules.RULES):
        yield from rule(experiment)
    for cluster_rule in node_rules.CLUSTER_RULES:
        yield from cluster_rule(experiment.cluster)
    for arm in experiment.arms:
        for arm_rule in arm_rules.ARM_RULES:
            yield from arm_rule(experiment, arm)
        for draft_rule in arm_rules.draft_rules(arm):
            yield from draft_rule(experiment, arm, arm.speculation)


def _engines_without_effect(experiment: Experiment) -> Iterator[Finding]:
    """Refuse an `engine` that changes nothing: its arm would be billed and compared as if it were different."""
    for arm in experiment.arms:
        if arm.engine and compile_config(arm) == compile_config(replace(arm, engine={})):
            yield refused("engine without-effect", arm.engine, at=f"{arm.paths.at}.engine")


class _Sweep(NamedTuple):
    """One arm of the file with the values of its lists, each with its path."""

    number: int
    section: ArmSection
    drafts: list[tuple[str, ModelReference]]
    windows: list[tuple[str, int]]


def _resolved(
    file: ExperimentFile, prompts: tuple[Prompt, ...], folder: Path, prompt_format: str
) -> tuple[Experiment | None, list[Finding]]:
    """Return the experiment, and its values that appear twice or a chat template that cannot be used. Return no experiment if a name is
    unknown or there are too many arms."""
    problems, repeated = [*_unknown_names(file)], list[Finding]()
    if not file.arms:
        problems.append(refused("arms too-few", None, number=0))
    sizes = _values(file.serving.max_num_seqs, "serving.max_num_seqs", repeated)
    sweeps = [_sweep(number, arm, repeated) for number, arm in enumerate(file.arms)]
    total = len(sizes) * sum(len(one.drafts) * len(one.windows) or 1 for one in sweeps)
    if total > MAX_ARMS:
        problems.append(refused("arms too-many", None, arms=count(total, "arm"), maximum=MAX_ARMS))
    weights, unusable = _weights(file.target, sweeps, folder)
    if problems := [*problems, *unusable]:
        return None, problems + repeated
    template, unread = _chat_template(file.serving.advanced.chat_template, folder)
    shared = _serving(file, sweeps, prompts) | {"chat_template": template}
    return Experiment(
        name=file.name,
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
        token_secret=file.token_secret,
        serve=file.serve,
        expect=file.expect,
    ), repeated + unread


def _unknown_names(file: ExperimentFile) -> Iterator[Finding]:
    """Runtimes, instance type and modes must be in the catalogue."""
    named = {"runtime": file.runtime}
    for number, arm in enumerate(file.arms):
        named[f"arms[{number}].runtime"] = arm.runtime or file.runtime
        if arm.speculation is not None and arm.speculation.mode not in MODES:
            path = f"arms[{number}].speculation.mode"
            yield refused("mode unknown", arm.speculation.mode, at=path, modes=", ".join(MODES))
    for path, name in named.items():
        if name not in RUNTIMES and (path == "runtime" or name != file.runtime):
            yield unknown_name(path, name, RUNTIMES, "runtime")
    if (instance := file.cluster.instance) not in INSTANCES:
        yield unknown_name("cluster.instance", instance, INSTANCES, "instance type")


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
    target: ModelReference, sweeps: list[_Sweep], folder: Path
) -> tuple[dict[str, Weights], list[Finding]]:
    """Return every model that the file names, by its path, and what is wrong with its name or description."""
    references, heads = {"target": target}, set[str]()
    for one in sweeps:
        for path, draft in one.drafts:
            references[path] = draft
            mode = one.section.speculation and one.section.speculation.mode
            # An unknown mode may need a head: it is refused by its name.
            head_mode = mode in HEAD_MODES or mode not in MODES
            if draft.like is None and draft.model not in MODELS and head_mode:
                heads.add(path)
    models, problems = MODELS, list[Finding]()
    if any(one.like or one.config is not None for one in references.values()):
        models, problems = own_models(
            [(path, one) for path, one in references.items() if path not in heads], folder
        )
    found = dict[str, Weights]()
    for path, reference in references.items():
        unknown = [] if path in heads else [*_unknown_model(path, reference, models, target)]
        problems += unknown
        model = None if unknown else models.get(reference.model)
        try:
            if path in heads and (base := models.get(target.model)):
                sizes = {} if reference.config is None else head_sizes(folder / reference.config)
                model = replace(head(reference.model, target=base), **sizes)
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
    if reference.like is not None and reference.config is not None:
        yield refused("shape twice", reference.config, at=f"{path}.config")
    elif reference.like is not None:
        if is_quantized(reference.model):
            # `like` is about the shape; a `config` says itself whether the weights are quantized.
            hint = f", as {reference.like}"
            yield refused("catalogue quantized", reference.model, at=f"{path}.model", hint=hint)
        if reference.like not in MODELS:
            yield unknown_name(f"{path}.like", reference.like, MODELS, "model")
    elif reference.config is not None:
        return
    elif reference is not target and (own := HEADS.get(reference.model)):
        yield refused("model head-alone", own.name, at=f"{path}.model", mode=own.mode)
    elif reference.model not in models:
        never = "" if reference is target else target.model
        yield unknown_name(f"{path}.model", reference.model, models, "model", _OWN_MODEL, never=never)


def _serving(file: ExperimentFile, sweeps: list[_Sweep], prompts: tuple[Prompt, ...]) -> dict[str, Any]:
    """Return the serving settings that all arms share, with the expected lengths of the load.

    If the file expects published figures, decoding is compiled only for the whole context, as it was for them: no
    published command line sets the key.
    """
    serving, instance = file.serving, INSTANCES[file.cluster.instance]
    native = any(RUNTIMES[one.section.runtime or file.runtime].dialect == "native" for one in sweeps)
    degree = logical_cores(serving, instance)
    shared: dict[str, Any] = {**dict(serving), **dict(serving.advanced)}
    del shared["advanced"]
    shared |= {"tensor_parallel": degree, "copies_artifact": native}
    if not native:
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
    return (None, [refused("serving.advanced.chat_template unusable", name, why=why)]) if why else (text, [])


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
            ),
            paths=Paths(at=at, runtime=paths.runtime, draft=draft_at, window=window_at),
            **common,
        )


def _short_names(drafts: list[ModelReference]) -> list[str]:
    """Return `0-6b` for Qwen/Qwen3-0.6B if the sizes of the drafts differ, otherwise the last part of the name."""
    lasts = [draft.model.rsplit("/", 1)[-1] for draft in drafts]
    sizes = [match[0] if (match := _SIZE.search(last)) else "" for last in lasts]
    return [slug(text) for text in (sizes if all(sizes) and len(set(sizes)) == len(sizes) else lasts)]
