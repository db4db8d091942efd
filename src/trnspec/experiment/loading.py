"""Load an experiment file in one direction: read it, check its form, resolve its names once, and check what the values mean together.

Each stage needs the one before, so a refusal has all problems of one stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trnspec.core.findings import Finding, InvalidExperiment, Misuse
from trnspec.core.yaml_file import read_yaml
from trnspec.experiment.arms import Experiment
from trnspec.experiment.checks import arms_section, cluster_section, serving_section, workload
from trnspec.experiment.compilation import compile_config
from trnspec.experiment.form_problems import form_problems
from trnspec.experiment.model import ExperimentFile
from trnspec.experiment.prompts import Prompt, read_prompts
from trnspec.experiment.refusals import refused
from trnspec.experiment.resolving import resolved


def load(path: Path) -> Experiment:
    """Read an experiment file, check it, and resolve it.

    Raises `InvalidExperiment` with every problem of its form, or else with every problem of its values.
    """
    try:
        document, lines, problems = read_yaml(path)
    except Misuse as error:
        raise InvalidExperiment(str(path), error.findings, {}) from None
    file, misshapen = read(document)
    problems += misshapen
    if file is None or problems:
        raise InvalidExperiment(str(path), problems, lines)
    prompts, unread, prompt_format = read_prompts(
        file.prompts,
        endpoint=file.benchmark.endpoint,
        folder=path.parent,
        temperature=file.benchmark.temperature,
        thinking=file.benchmark.thinking,
    )
    experiment, problems = validate_draft(file, prompts, path.parent, prompt_format)
    problems += unread
    if experiment is None or problems:
        raise InvalidExperiment(str(path), problems, lines)
    return replace(experiment, path=path)


def read(document: Any) -> tuple[ExperimentFile | None, list[Finding]]:
    """Return the sections of a file, or all problems of their form."""
    try:
        return ExperimentFile.model_validate(document), []
    except ValidationError:
        return None, form_problems(document)


def validate_draft(
    file: ExperimentFile, prompts: tuple[Prompt, ...], folder: Path, prompt_format: str
) -> tuple[Experiment | None, list[Finding]]:
    """Return the resolved experiment and the problems of its values. Paths in the file are relative to `folder`.

    If a name is unknown, there is no experiment, and only the cluster is checked beside the names.
    """
    experiment, problems = resolved(file, prompts, folder, prompt_format)
    if experiment is None:
        return None, problems + [one for rule in cluster_section.RULES for one in rule(file.cluster)]
    # Arms of one sweep share the text of the file, so each problem is reported once: for the
    # first of them, which has the shortest name.
    distinct = {
        (problem.where, problem.why, problem.where.endswith("].name") or repr(problem.value)): problem
        for problem in reversed([*problems, *_broken_rules(experiment)])
    }
    return experiment, list(reversed(distinct.values())) or [*_without_effect(experiment)]


def _broken_rules(experiment: Experiment) -> Iterator[Finding]:
    for rule in (*arms_section.RULES, *serving_section.RULES):
        yield from rule(experiment)
    for cluster_rule in cluster_section.RULES:
        yield from cluster_rule(experiment.cluster)
    for arm in experiment.arms:
        for arm_rule in arms_section.ARM_RULES:
            yield from arm_rule(experiment, arm)
    for arm in experiment.arms:
        if arm.speculation is not None:
            for draft_rule in arms_section.draft_rules(arm):
                yield from draft_rule(experiment, arm, arm.speculation)
    for rule in workload.RULES:
        yield from rule(experiment)


def _without_effect(experiment: Experiment) -> Iterator[Finding]:
    """Refuse an `engine` that changes nothing: its arm would be billed and compared as if it were different."""
    for arm in experiment.arms:
        if arm.engine and compile_config(arm) == compile_config(replace(arm, engine={})):
            yield refused("engine without-effect", arm.engine, at=f"{arm.paths.at}.engine")
