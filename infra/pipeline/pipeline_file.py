"""`pipeline.yaml`, checked before jsii starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import ManifestFile, read
from core.findings import Misuse
from experiment import Experiment, load
from experiment.naming import account_wide
from infra import ROOT
from infra.deployment_file import (
    CONVENTIONS,
    Lasting,
    judge,
    mapping,
    parse,
    refuse_elsewhere,
    refuse_unknown,
)

STAGES = ("dev", "prod")
BOOTSTRAP = ROOT / "infra/bootstrap/policies.yaml"
MOST_MINUTES = 2160
"""Of one build: `TimeoutInMinutes` of https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-codebuild-project.html"""
AROUND_MINUTES = 30
"""For set-up, and for waiting in the project's queue."""
MOST_HOURS = (MOST_MINUTES - AROUND_MINUTES) // 60
"""Of a compilation: the build that waits for it lasts longer than the build that compiles."""
CLEAR_ROLE = "speculation-clear"
"""In every stage's account, from the policies of the bootstrap."""
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
_KEPT = {
    "admins": "no one could use kubectl on its cluster",
    "alarm_email": "no one would receive its alarms",
}
"""Of a stage, each with what follows without it."""
_OPTIONAL = ("workloads", *CONVENTIONS)
"""Of a stage, with the defaults of `deployment.yaml`."""
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
    lasting: Lasting
    """Who administers the cluster and receives its alarms, and what the pipeline decides itself."""

    @property
    def starter_role(self) -> str:
        """Role that the pipeline assumes to start the projects of its steps."""
        return f"{delivery_role_name(self.experiment)}-start"


@dataclass(frozen=True, kw_only=True)
class PipelineConfiguration:
    """All settings of the pipeline."""

    name: str
    account: str
    region: str
    connection: str
    pull_request_connection: str
    """Its token can be read by any code that a pull request runs."""
    repository: str
    branch: str
    boundary: str
    dev: StageConfiguration
    prod: StageConfiguration
    compile_hours: int
    benchmark: bool
    baseline_run: str | None
    """The run that a new one is judged by; `None`: no gate."""

    def caller_role(self, stage: StageConfiguration) -> str:
        """Role of the pipeline's step, the only one that may assume the stage's starter role."""
        return f"{self.name}-{self.region}-{stage.name}-steps"


def delivery_role_name(experiment: Experiment) -> str:
    """Role of the projects that a stage's steps run in, admitted to the cluster."""
    return f"{account_wide(experiment)}-delivery"


def read_pipeline(path: Path, *, manifests: Path = ROOT / "manifests") -> PipelineConfiguration:
    """Read, judge and resolve.

    Raises `Misuse` with one line, and `InvalidExperiment`.
    """
    data = mapping(parse(path), path.name, file=path.name)
    refuse_unknown(data, (*_KEYS, "stages", "compile_hours", "benchmark"), path.name)
    texts = {key: _text(data, key, path.name) for key in _KEYS}
    if texts["pull_request_connection"] == texts["connection"]:
        raise Misuse(
            f"{path.name}: pull_request_connection = {texts['connection']!r}: is the pipeline's own connection, and what a "
            "pull request runs can read its token; create a second connection for pull requests"
        )
    sections = mapping(data.get("stages"), f"{path.name}: stages", file=path.name)
    refuse_unknown(sections, STAGES, f"{path.name}: stages")
    dev, prod = (_stage(name, sections.get(name), path, manifests, texts["region"]) for name in STAGES)
    if (dev.account, dev.experiment.name) == (prod.account, prod.experiment.name):
        raise Misuse(
            f"{path.name}: stages dev and prod are both {dev.experiment.name} in account {dev.account}, so each would "
            "overwrite the other's stacks; use two accounts, or two experiments of different names"
        )
    benchmark = data.get("benchmark", False)
    named = isinstance(benchmark, str) and _RUN.fullmatch(benchmark) is not None
    if not named and not isinstance(benchmark, bool):
        raise Misuse(
            f"{path.name}: benchmark = {benchmark!r}: is neither true, false nor the id of a run; use the folder name under "
            "runs/"
        )
    # In dev no node may start at deployment, whatever the experiment says.
    idle = replace(dev.experiment, cluster=dev.experiment.cluster.model_copy(update={"nodes": 0}))
    return PipelineConfiguration(
        **texts,
        dev=replace(dev, experiment=idle),
        prod=prod,
        compile_hours=_hours(data.get("compile_hours", 8), path.name),
        benchmark=bool(benchmark),
        baseline_run=benchmark if named else None,
    )


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    pattern, what = _KEYS[key]
    value = data.get(key)
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise Misuse(f"{where}: {key} = {value!r}: is not {what}")
    return value


def _hours(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_HOURS:
        raise Misuse(
            f"{where}: compile_hours = {value!r}: is not a whole number from 1 to {MOST_HOURS} (CodeBuild ends a build after "
            f"{MOST_MINUTES // 60} hours, and the pipeline's build waits longer than the compilation takes); use 8"
        )
    return value


def _stage(name: str, value: Any, path: Path, manifests: Path, region: str) -> StageConfiguration:
    where = f"{path.name}: stages.{name}"
    data = mapping(value, where, file=path.name)
    refuse_unknown(data, ("account", "experiment", *_KEPT, *_OPTIONAL), where)
    account = _text(data, "account", where)
    file = data.get("experiment")
    if not isinstance(file, str) or not file or Path(file).is_absolute():
        raise Misuse(
            f"{where}.experiment = {file!r}: is not a path in this repository; use experiments/qwen3-32b.yaml"
        )
    experiment = load(ROOT / file)
    if experiment.lab_only:
        raise Misuse(f"{where}.experiment = {file!r}: runs in the lab only; name one for AWS")
    if experiment.cluster.region != region:
        raise Misuse(
            f"{where}: {file} is in {experiment.cluster.region}, the pipeline in {region}; use one region for both"
        )
    refuse_unknown_roles(experiment, where)
    files = read(experiment, manifests)
    for key, without in _KEPT.items():
        # A stage is never deployed by hand, so a missing setting would not be noticed.
        if not data.get(key):
            raise Misuse(
                f"{where}: {key} is empty, and {without}; write it as in the committed pipeline.yaml"
            )
    decided = {
        "account": account,
        "pipeline_role": f"arn:aws:iam::{account}:role/{delivery_role_name(experiment)}",
        "build_images": "codebuild",  # the publishing builds of the pipeline then need no privileged mode
    }
    given = {key: data[key] for key in (*_KEPT, *_OPTIONAL) if key in data}
    lasting = judge({**given, **decided}, where)
    refuse_elsewhere(lasting, experiment, where)
    return StageConfiguration(
        name=name, account=account, experiment=experiment, files=files, path=file, lasting=lasting
    )


def refuse_unknown_roles(experiment: Experiment, where: str) -> None:
    """`Misuse` for an experiment whose roles CloudFormation could not make: the deployment would end with that."""
    # Beginnings of the names of roles that the committed execution policy lets CloudFormation make.
    text = BOOTSTRAP.read_text(encoding="utf-8")
    known = tuple(re.findall(r":role/([\w-]+)\*(?=[,\s])", text.partition("Resources:")[0]))
    if not f"{experiment.name}-".startswith(known):
        prefix = f"{experiment.name.partition('-')[0]}-"
        raise Misuse(
            f"{where}: the roles of {experiment.name} begin with its name, and {BOOTSTRAP.relative_to(ROOT)} allows "
            f"{', '.join(known)} only; add role/{prefix}* and instance-profile/{prefix}* to its Roles, stack/{prefix}* to "
            "its Stacks, and deploy it again in every account (docs/pipeline.md)"
        )
