"""From a path to a frozen experiment, or to every problem at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.findings import Finding, InvalidExperiment, Misuse
from core.yaml_file import read_yaml
from experiment import checks
from experiment.arms import Arm, ArmServing, Experiment, Speculation, Weights
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.runtimes import RUNTIMES
from experiment.compilation import compile_config
from experiment.model_config import with_own_models
from experiment.parsing import read
from experiment.prompts import Prompt, expected_tokens, read_prompts, replayed, timed
from experiment.sweeps import ExpandedFile, SingleArm, expand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiment.model import Benchmark, ExperimentFile, ModelReference


def load(path: Path) -> Experiment:
    """Read, judge and resolve an experiment file.

    Raises `InvalidExperiment` with every problem found.
    """
    try:
        document, lines, doubled = read_yaml(path)
    except Misuse as error:
        raise InvalidExperiment(str(path), error.findings, {}) from None
    reading = read(document)
    problems = [*doubled, *reading.problems]
    if reading.file is not None:
        written = reading.file
        prompts, unread, prompt_format = read_prompts(
            written.prompts, endpoint=written.benchmark.endpoint, folder=path.parent
        )
        file, judged = judge(written, prompts, path.parent)
        problems += filter(reading.judges, (*judged, *unread))
        if not problems:
            experiment = _resolved(file, prompts, prompt_format)
            problems = list(_without_effect(file, experiment))
            if not problems:
                return experiment
    raise InvalidExperiment(str(path), problems, lines)


def judge(
    written: ExperimentFile, prompts: tuple[Prompt, ...], folder: Path
) -> tuple[ExpandedFile, list[Finding]]:
    """The file, whose paths are relative to `folder`, with sweeps expanded and its own models described; what is wrong."""
    expanded, repeated = expand(written)
    file, unusable = with_own_models(expanded, folder)
    found = [*repeated, *unusable, *checks.problems(file, prompts)]
    # Arms that one arm of the file makes share what they were written with, and what is wrong with it is said once: of the
    # first of them, whose name is the shortest.
    distinct = {
        (one.where, one.why, one.where.endswith("].name") or repr(one.value)): one for one in reversed(found)
    }
    return file, list(reversed(distinct.values()))


def _without_effect(file: ExpandedFile, experiment: Experiment) -> Iterator[Finding]:
    """An engine that is told what it has already would be rented and compared as if it were another."""
    for written, arm in zip(file.arms, experiment.arms, strict=True):
        if written.engine and compile_config(arm) == compile_config(replace(arm, engine={})):
            why = "changes nothing: the arm has these values without it"
            yield Finding(f"{written.at}.engine", written.engine, why, "remove it, or set another value")


def _resolved(file: ExpandedFile, prompts: tuple[Prompt, ...], prompt_format: str) -> Experiment:
    """Every name looked up, which a file without problems allows."""
    return Experiment(
        name=file.name,
        description=file.description,
        arms=tuple(_arm(file, arm, prompts) for arm in file.arms),
        prompts=prompts,
        prompt_format=prompt_format,
        benchmark=_as_recorded(file.benchmark, prompts),
        cluster=file.cluster,
        token_secret=file.weights.token_secret,
        serve=file.serve,
        expect=file.expect,
    )


def _as_recorded(asked: Benchmark, prompts: tuple[Prompt, ...]) -> Benchmark:
    """Of a replay every prompt is asked once in a round, and at their own times there is no other load."""
    if not replayed(prompts):
        return asked
    load: dict[str, Any] = {"concurrency": ()} if timed(prompts) else {}
    return asked.model_copy(update={"requests": len(prompts), **load})


def _lengths(file: ExpandedFile, arm: SingleArm, prompts: tuple[Prompt, ...]) -> dict[str, Any]:
    """What the load is expected to ask of an arm whose graphs are compiled for it, the same for every arm that is compared.

    Where the file expects published figures, decoding is compiled for the whole context alone, as it was for them: no
    published command line sets the key.
    """
    if RUNTIMES[arm.runtime].dialect != "native":
        return {}
    prompt, sequence = expected_tokens(prompts, answer=file.benchmark.max_tokens)
    windows = [one.speculation.num_speculative_tokens for one in file.arms if one.speculation]
    step = 1 + max((k for k in windows if isinstance(k, int)), default=0)
    published = file.expect is not None and bool(file.expect.figures)
    return {"prompt_tokens": prompt, "sequence_tokens": 0 if published else sequence + step}


def _arm(file: ExpandedFile, arm: SingleArm, prompts: tuple[Prompt, ...]) -> Arm:
    instance, treatment = INSTANCES[file.cluster.instance], arm.speculation
    return Arm(
        name=arm.name,
        target=_weights(file, file.target),
        runtime=RUNTIMES[arm.runtime],
        instance=instance,
        serving=ArmServing.model_construct(
            **{
                **dict(file.serving),
                "tensor_parallel": file.serving.degree_on(instance),
                "max_num_seqs": arm.max_num_seqs,
                **_lengths(file, arm, prompts),
            }
        ),
        speculation=Speculation(**{**dict(treatment), "draft": _weights(file, treatment.draft)})
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
