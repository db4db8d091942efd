"""What `pipeline.yaml` says, judged before jsii starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from cdk8s_charts.errors import ChartError
from cdk8s_charts.manifest_file import ManifestFile, read
from experiment import Experiment, load
from infra.configuration import ROOT
from infra.errors import InfraError
from infra.pipeline.steps import MOST_HOURS, MOST_MINUTES

STAGES = ("dev", "prod")
BOOTSTRAP = ROOT / "infra/bootstrap/policies.yaml"
_KEYS = {
    "name": (r"[a-z][a-z0-9-]{2,30}", "lower-case letters, digits and hyphens, e.g. speculation-delivery"),
    "account": (r"\d{12}", 'twelve digits in quotes, e.g. "111122223333"'),
    "region": (r"[a-z]{2}(-[a-z]+)+-\d", "a region, e.g. us-east-2"),
    "connection": (
        r"arn:aws[a-z-]*:(codeconnections|codestar-connections):[a-z0-9-]+:\d{12}:connection/[0-9a-f-]{36}",
        "the ARN of a connection that somebody has authorised (console: Developer Tools, Connections)",
    ),
    "pull_request_connection": (
        r"arn:aws[a-z-]*:codeconnections:[a-z0-9-]+:\d{12}:connection/[0-9a-f-]{36}",
        "the ARN of a second connection, for the builds of pull requests alone (console: Developer Tools, Connections)",
    ),
    "repository": (r"[\w.-]+/[\w.-]+", "owner/name"),
    "branch": (r"[\w./-]+", "a branch, e.g. main"),
    "boundary": (
        r"[\w+=,.@-]{1,128}",
        "the name of the permissions boundary from infra/bootstrap/policies.yaml",
    ),
}
_RUN = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, kw_only=True)
class StageConfiguration:
    """One account that the pipeline delivers to."""

    name: str
    account: str
    experiment: Experiment
    files: tuple[ManifestFile, ...]
    """The manifests as they were reviewed."""
    path: str
    """The experiment's file in the repository."""


@dataclass(frozen=True, kw_only=True)
class PipelineConfiguration:
    """All that the pipeline is told."""

    name: str
    account: str
    region: str
    connection: str
    pull_request_connection: str
    """Its token can be read by whatever a pull request runs."""
    repository: str
    branch: str
    boundary: str
    dev: StageConfiguration
    prod: StageConfiguration
    compile_hours: int
    benchmark: bool
    baseline_run: str | None
    """The run that a new one is judged by; `None`: no gate."""


def read_pipeline(path: Path, *, manifests: Path = ROOT / "manifests") -> PipelineConfiguration:
    """Read, judge and resolve.

    Raises `InfraError` with one line, and `experiment.InvalidExperiment`.
    """
    data = _mapping(_parse(path), path.name)
    _refuse_unknown(data, (*_KEYS, "stages", "compile_hours", "benchmark"), path.name)
    texts = {key: _text(data, key, path.name) for key in _KEYS}
    if texts["pull_request_connection"] == texts["connection"]:
        raise InfraError(
            f"{path.name}: pull_request_connection = {texts['connection']!r}: is the pipeline's own connection, and what a "
            "pull request runs can read its token; create a second connection for pull requests"
        )
    sections = _mapping(data.get("stages"), f"{path.name}: stages")
    _refuse_unknown(sections, STAGES, f"{path.name}: stages")
    dev, prod = (_stage(name, sections.get(name), path, manifests, texts["region"]) for name in STAGES)
    _refuse_collision(dev, prod, path.name)
    benchmark, baseline = _benchmark(data.get("benchmark", False), path.name)
    idle = replace(dev.experiment, cluster=replace(dev.experiment.cluster, nodes=0))
    return PipelineConfiguration(
        **texts,
        dev=replace(
            dev, experiment=idle
        ),  # whatever the file starts at deploy time, here nothing bills by the node
        prod=prod,
        compile_hours=_hours(data.get("compile_hours", 8), path.name),
        benchmark=benchmark,
        baseline_run=baseline,
    )


def _parse(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InfraError(
            f"{path}: cannot be read: {error.strerror}; start from the committed pipeline.yaml"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise InfraError(f"{path}: is no YAML ({first}); mend it") from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InfraError(f"{where} = {value!r}: is no mapping; see the committed pipeline.yaml")
    return value


def _refuse_unknown(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            raise InfraError(f"{where}: {key!r} is no key; use {', '.join(known)}")


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    pattern, what = _KEYS[key]
    value = data.get(key)
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise InfraError(f"{where}: {key} = {value!r}: is not {what}")
    return value


def _stage(name: str, value: Any, path: Path, manifests: Path, region: str) -> StageConfiguration:
    where = f"{path.name}: stages.{name}"
    data = _mapping(value, where)
    _refuse_unknown(data, ("account", "experiment"), where)
    account = _text(data, "account", where)
    file = data.get("experiment")
    if not isinstance(file, str) or not file or Path(file).is_absolute():
        raise InfraError(
            f"{where}.experiment = {file!r}: is no path in this repository; use experiments/qwen3-32b.yaml"
        )
    experiment = load(ROOT / file)
    if experiment.lab_only:
        raise InfraError(f"{where}.experiment = {file!r}: runs in the lab only; name one for AWS")
    if experiment.cluster.region != region:
        raise InfraError(
            f"{where}: {file} is in {experiment.cluster.region}, the pipeline in {region}; use one region for both"
        )
    refuse_unknown_roles(experiment, where)
    try:
        files = read(experiment, manifests)
    except ChartError as error:
        raise InfraError(str(error)) from None
    return StageConfiguration(name=name, account=account, experiment=experiment, files=files, path=file)


def role_prefixes() -> tuple[str, ...]:
    """Beginnings of the names of roles that the committed execution policy lets CloudFormation make."""
    text = BOOTSTRAP.read_text(encoding="utf-8")
    return tuple(re.findall(r":role/([\w-]+)\*(?=[,\s])", text.partition("Resources:")[0]))


def refuse_unknown_roles(experiment: Experiment, where: str) -> None:
    """`InfraError` for an experiment whose roles CloudFormation could not make: the deployment would end with that."""
    known = role_prefixes()
    if not f"{experiment.name}-".startswith(known):
        prefix = f"{experiment.name.partition('-')[0]}-"
        raise InfraError(
            f"{where}: the roles of {experiment.name} begin with its name, and {BOOTSTRAP.relative_to(ROOT)} allows "
            f"{', '.join(known)} only; add role/{prefix}* and instance-profile/{prefix}* to its Roles, and deploy it "
            "again in every account (docs/pipeline.md)"
        )


def _refuse_collision(dev: StageConfiguration, prod: StageConfiguration, where: str) -> None:
    if (dev.account, dev.experiment.name) == (prod.account, prod.experiment.name):
        raise InfraError(
            f"{where}: stages dev and prod are both {dev.experiment.name} in account {dev.account}, so each would overwrite "
            "the other's stacks; use two accounts, or two experiments of different names"
        )


def _hours(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_HOURS:
        raise InfraError(
            f"{where}: compile_hours = {value!r}: is not a whole number from 1 to {MOST_HOURS} (CodeBuild ends a build after "
            f"{MOST_MINUTES // 60} hours, and the pipeline's build waits longer than the compilation takes); use 8"
        )
    return value


def _benchmark(value: Any, where: str) -> tuple[bool, str | None]:
    if isinstance(value, bool):
        return value, None
    if isinstance(value, str) and _RUN.fullmatch(value):
        return True, value
    raise InfraError(
        f"{where}: benchmark = {value!r}: is neither true, false nor the id of a run; use the folder name under runs/"
    )
