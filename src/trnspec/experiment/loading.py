"""Load an experiment file: the result is a frozen experiment, or all problems at once.

One validation lists all problems of the form. An invalid value must not hide other problems, so the rest is
checked too: invalid values become `UNREAD`, which ends each rule that reads them.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trnspec.core.findings import MAX_FINDINGS, Finding, InvalidExperiment, Misuse
from trnspec.core.yaml_file import read_yaml
from trnspec.experiment import checks
from trnspec.experiment.arms import Arm, ArmServing, Experiment, Speculation, Weights
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.compilation import compile_config
from trnspec.experiment.forms import FORMS, UNION_TAGS, UNREAD, FileSection, Unread
from trnspec.experiment.model import ExperimentFile, ModelReference
from trnspec.experiment.model_config import with_own_models
from trnspec.experiment.prompts import Prompt, expected_tokens, read_prompts
from trnspec.experiment.refusals import refused
from trnspec.experiment.sweeps import ExpandedFile, SingleArm, expand

Location = tuple[int | str, ...]
_STAND_INS = {"name": "", "model": "", "mode": "", "arm": "", "num_speculative_tokens": 0, "concurrency": 1}
"""Required values that can be `UNREAD`, and valid values in their place."""
_RANGE = re.compile(r"(?<=[0-9]):(?=[0-9])")


def load(path: Path) -> Experiment:
    """Read, judge and resolve an experiment file.

    Raises `InvalidExperiment` with every problem found.
    """
    try:
        document, lines, problems = read_yaml(path)
    except Misuse as error:
        raise InvalidExperiment(str(path), error.findings, {}) from None
    written, misshapen = read(document)
    problems += misshapen
    if written is not None:
        try:
            prompts, unread, prompt_format = read_prompts(
                written.prompts, endpoint=written.benchmark.endpoint, folder=path.parent
            )
        except Unread:
            prompts, unread, prompt_format = UNREAD, (), ""
        file, judged = judge(written, prompts, path.parent, complete=not misshapen)
        problems += (*judged, *unread)
        if file is not None and not problems:
            experiment = _resolved(file, prompts, prompt_format)
            problems += _without_effect(file, experiment)
            if not problems:
                return experiment
    raise InvalidExperiment(str(path), problems, lines)


def read(document: Any) -> tuple[ExperimentFile | None, list[Finding]]:
    """Return the sections of a file, and all problems of their form. Invalid values are `UNREAD`; the file is `None` if
    too little is left to judge."""
    try:
        return ExperimentFile.model_validate(document), []
    except ValidationError as error:
        details = {
            _location(detail["loc"], document): detail for detail in reversed(error.errors(include_url=False))
        }
    if ("version",) in details:
        return None, [_problem(details["version",], ("version",))]
    problems = [_problem(detail, location) for location, detail in reversed(details.items())]
    unknown = [location for location, detail in details.items() if detail["type"] == "extra_forbidden"]
    keys = {_key(location) for location in details if location not in unknown and location}
    broken = [key for key in keys if not any(key[:length] in keys for length in range(1, len(key)))]
    rest = copy.deepcopy(document)
    if len(problems) > MAX_FINDINGS or () in details:
        return None, problems[: MAX_FINDINGS + 1]
    for location in (*unknown, *broken):
        _cut(rest, location)
    try:
        file = ExperimentFile.model_validate(rest)
    except ValidationError:
        return None, problems
    for *parents, key in broken:
        section: Any = file
        for step in parents:
            section = section[step] if isinstance(step, int) else getattr(section, step)
        section.__dict__[key] = UNREAD
    return file, problems


def _location(loc: Location, data: Any) -> Location:
    """Return the part of pydantic's location that is or can be in the file (pydantic appends type names inside unions)."""
    location: list[int | str] = []
    for step in loc:
        if step in UNION_TAGS:
            continue
        inside = step in data if isinstance(data, dict) else isinstance(data, list) and isinstance(step, int)
        if not inside and not (isinstance(data, dict) and step in _fields(location)):
            break
        location.append(step)
        data = data[step] if inside else None  # pyrefly: ignore[unsupported-operation]  # None has nothing inside
    return tuple(location)


def _fields(location: Iterable[int | str]) -> dict[str, Any]:
    """Return the keys that the section at a location accepts; empty if any key is allowed."""
    section: Any = ExperimentFile
    for step in location:
        if section is not None and isinstance(step, str):
            field = section.model_fields.get(step)
            section = _section_in(field.annotation) if field else None
    return dict(section.model_fields) if section else {}


def _section_in(annotation: Any) -> Any:
    """Return the section class inside an annotation such as `list[ArmSection]` or `SpeculationSection | None`."""
    if isinstance(annotation, type) and issubclass(annotation, FileSection):
        return annotation
    inner = map(_section_in, getattr(annotation, "__args__", ()))
    return next((section for section in inner if section is not None), None)


def _key(location: Location) -> Location:
    """Return the location up to the key of the innermost section."""
    last = max(n for n, step in enumerate(location) if n == 0 or step in _fields(location[:n]))
    return location[: last + 1]


def _cut(data: Any, location: Location) -> None:
    """Remove a key from its section; replace a required key by a valid value if one exists."""
    *parents, key = location
    for step in parents:
        data = data[step]
    data.pop(key, None)
    field = _fields(parents).get(str(key))
    if field and field.is_required() and key in _STAND_INS:
        data[key] = _STAND_INS[str(key)]


def _problem(detail: ErrorDetails, location: Location) -> Finding:
    """Return a finding for an error of pydantic."""
    kind, value, path = detail["type"], detail["input"], _dotted(location)
    if kind == "invalid_key":
        return refused("form no-text", None, at="", key=detail["loc"][-1])
    if path == "":
        return refused("form no-mapping-at-all", None, at="")
    if path == "version":
        return refused("version missing", None) if kind == "missing" else refused("version other", value)
    match kind:
        case "extra_forbidden":
            keys = sorted(_fields(location[:-1]))
            close = difflib.get_close_matches(str(location[-1]), keys, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(keys)}"
            return refused("form unknown-key", None, at=path, hint=hint)
        case "missing":
            return refused("form missing", None, at=path)
        case "string_type" if value is not None and not isinstance(value, (list, dict)):
            return refused("form no-string", value, at=path)
        case "model_type" | "dict_type":
            keys = sorted(_fields(location))
            return refused(
                "form no-mapping", value, at=path, keys=f"its keys: {', '.join(keys)}" if keys else "keys"
            )
        case "list_type":
            empty = value is None or isinstance(value, dict)
            items = "[] for none" if empty else f"[{_RANGE.sub(', ', str(value)):.40}]"
            return refused("form no-list", value, at=path, items=items)
        case "string_pattern_mismatch":
            return refused("form pattern", value, at=path, form=FORMS[detail["ctx"]["pattern"]])  # pyrefly: ignore[not-required-key-access]  # of this kind it has one
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace(" after validation", "").replace("a valid integer", "an integer")
    message = message[0].lower() + message[1:].replace("a valid ", "a ")
    bound = kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
    return refused("form bound" if bound else "form other", value, at=path, message=message)


def _dotted(location: Iterable[int | str]) -> str:
    """Return `("arms", 1, "name")` as `arms[1].name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(
        "."
    )


def judge(
    written: ExperimentFile, prompts: tuple[Prompt, ...], folder: Path, *, complete: bool = True
) -> tuple[ExpandedFile | None, list[Finding]]:
    """Return the file with expanded sweeps and its own models, and its problems. Paths in it are relative to `folder`."""
    try:
        expanded, repeated = expand(written)
    except Unread:
        return None, []
    file, unusable = with_own_models(expanded, folder)
    problems = [*repeated, *unusable, *checks.problems(file, prompts, complete=complete)]
    # Arms of one sweep share the text of the file, so each problem is reported once: for the
    # first of them, which has the shortest name.
    distinct = {
        (problem.where, problem.why, problem.where.endswith("].name") or repr(problem.value)): problem
        for problem in reversed(problems)
    }
    return file, list(reversed(distinct.values()))


def _without_effect(file: ExpandedFile, experiment: Experiment) -> Iterator[Finding]:
    """Refuse an `engine` that changes nothing: its arm would be billed and compared as if it were different."""
    for written, arm in zip(file.arms, experiment.arms, strict=True):
        if written.engine and compile_config(arm) == compile_config(replace(arm, engine={})):
            yield refused("engine without-effect", written.engine, at=f"{written.at}.engine")


def _resolved(file: ExpandedFile, prompts: tuple[Prompt, ...], prompt_format: str) -> Experiment:
    """Look up every name; the file has no problems."""
    return Experiment(
        name=file.name,
        description=file.description,
        arms=tuple(_arm(file, arm, prompts) for arm in file.arms),
        prompts=prompts,
        prompt_format=prompt_format,
        benchmark=file.benchmark,
        cluster=file.cluster,
        token_secret=file.weights.token_secret,
        serve=file.serve,
        expect=file.expect,
    )


def _lengths(file: ExpandedFile, arm: SingleArm, prompts: tuple[Prompt, ...]) -> dict[str, Any]:
    """Return the expected lengths of the load for an arm whose graphs are compiled for them, the same for all compared arms.

    If the file expects published figures, decoding is compiled only for the whole context, as it was for them: no
    published command line sets the key.
    """
    if RUNTIMES[arm.runtime].dialect != "native":
        return {}
    prompt, sequence = expected_tokens(prompts, answer=file.benchmark.max_tokens)
    step = 1 + max(
        (one.speculation.num_speculative_tokens for one in file.arms if one.speculation), default=0
    )
    published = file.expect is not None and bool(file.expect.figures)
    return {"prompt_tokens": prompt, "sequence_tokens": 0 if published else sequence + step}


def _arm(file: ExpandedFile, arm: SingleArm, prompts: tuple[Prompt, ...]) -> Arm:
    instance, treatment = INSTANCES[file.cluster.instance], arm.speculation
    own = dict[str, Any](tensor_parallel=file.serving.degree_on(instance), max_num_seqs=arm.max_num_seqs)
    return Arm(
        name=arm.name,
        target=_weights(file, file.target),
        runtime=RUNTIMES[arm.runtime],
        instance=instance,
        serving=ArmServing.model_construct(**{**dict(file.serving), **own, **_lengths(file, arm, prompts)}),
        speculation=Speculation(**dict(treatment) | {"draft": _weights(file, treatment.draft)})
        if treatment
        else None,
        engine=arm.engine,
        scheduler=arm.scheduler,
    )


def _weights(file: ExpandedFile, reference: ModelReference) -> Weights:
    model = file.described(reference)
    assert model is not None, "checked before"
    return Weights(
        model=model,
        revision=reference.revision,
        shape_of=reference.like or reference.config,
        address=reference.weights and reference.weights.rstrip("/"),
    )
