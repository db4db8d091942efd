"""`pipeline.yaml`, checked before jsii starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from cdk8s_charts.manifests import read
from infra.deployment_file import (
    Account,
    Admins,
    DeployedExperiment,
    Email,
    Section,
    Settings,
    matching,
    parse,
    refuse_elsewhere,
    validated,
)
from trnspec.core.checkout import ROOT
from trnspec.core.findings import Finding, Misuse
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import MAX_BUILD_MINUTES, account_wide

FILE = ROOT / "pipeline.yaml"
BOOTSTRAP = ROOT / "infra/bootstrap/policies.yaml"
AROUND_MINUTES = 30
"""For set-up, and for waiting in the project's queue."""
MAX_HOURS = (MAX_BUILD_MINUTES - AROUND_MINUTES) // 60 - 1
"""The longest life of nodes. CodeBuild ends a build after 36 hours; the build that runs fetches weights before it starts nodes, and the
build that waits for it lasts longer."""
_CONNECTION = (
    r"arn:aws[a-z-]*:(codeconnections|codestar-connections):[a-z0-9-]+:\d{12}:connection/[0-9a-f-]{36}"
)


class StageSection(Settings):
    """One account that the pipeline delivers to, as the file has it. A stage is never deployed by hand, so a missing setting would
    not be noticed."""

    account: Account
    admins: Admins
    alarm_email: Email
    experiment: Annotated[
        str, matching(r"(?!/).+", "a path in this repository", "write one like experiments/qwen3-32b.yaml")
    ]
    """The experiment's file."""


class DeliveryStages(Section):
    dev: StageSection
    prod: StageSection


class PipelineFile(Section):
    name: Annotated[str, matching(r"[a-z][a-z0-9-]{2,30}", "lower-case letters, digits and hyphens")]
    account: Account
    """Where the pipeline lives."""
    region: Annotated[str, matching(r"[a-z]{2}(-[a-z]+)+-\d", "a region")]
    connection: Annotated[
        str,
        matching(
            _CONNECTION,
            "the ARN of a connection",
            "somebody must have authorised it (console: Developer Tools, Connections)",
        ),
    ]
    repository: Annotated[str, matching(r"[\w.-]+/[\w.-]+", "owner/name")]
    branch: Annotated[str, matching(r"[\w./-]+", "a branch")]
    boundary: Annotated[
        str,
        matching(
            r"[\w+=,.@-]{1,128}", "the name of the permissions boundary from infra/bootstrap/policies.yaml"
        ),
    ]
    stages: DeliveryStages
    run: Literal["never", "compile", "measure"] = "never"
    """What starts Trn2 nodes in prod once it is deployed."""
    hours: Annotated[int, Field(ge=1, le=MAX_HOURS, strict=True)] = 12
    """How long the Trn2 nodes of a run live at most."""
    baseline_run: Annotated[str, matching(r"[\w.-]{1,100}", "the id of a run, its folder under runs/")] = ""
    """The run that a new one is judged by; without it there is no gate."""

    @field_validator("baseline_run")
    @classmethod
    def _needs_a_measurement(cls, baseline: str, info: ValidationInfo) -> str:
        if baseline and info.data.get("run") in ("never", "compile"):
            raise ValueError(f"run is {info.data['run']}, so nothing is measured; write run: measure")
        return baseline


@dataclass(frozen=True, kw_only=True)
class StageConfiguration(DeployedExperiment):
    """One account that the pipeline delivers to."""

    name: str
    settings: StageSection

    @property
    def starter_role(self) -> str:
        """Role that the pipeline assumes to start the projects of its steps."""
        return f"{delivery_role_name(self.experiment)}-start"


@dataclass(frozen=True, kw_only=True)
class PipelineConfiguration:
    settings: PipelineFile
    dev: StageConfiguration
    prod: StageConfiguration

    def caller_role(self, stage: StageConfiguration) -> str:
        """Return the name of the role of the pipeline's steps, the only one that may assume the stage's starter role."""
        return f"{self.settings.name}-{self.settings.region}-{stage.name}-steps"


def delivery_role_name(experiment: Experiment) -> str:
    """Return the name of the role of a stage's smoke test, which may enter the cluster."""
    return f"{account_wide(experiment)}-delivery"


def read_pipeline(path: Path = FILE, *, manifests: Path = ROOT / "manifests") -> PipelineConfiguration:
    """Read the file, and the experiments and manifests that it names.

    Raises `Misuse` with one line for each problem, and `InvalidExperiment`.
    """
    file = path.name
    settings = validated(PipelineFile, parse(path), file)
    dev, prod = (_stage(name, section, file, manifests, settings.region) for name, section in settings.stages)
    if (dev.settings.account, dev.experiment.name) == (prod.settings.account, prod.experiment.name):
        raise Misuse(
            f"{file}: stages dev and prod are both {dev.experiment.name} in account {dev.settings.account}, so each would "
            "overwrite the other's stacks; use two accounts, or two experiments of different names"
        )
    if prod.experiment.serve and settings.run != "never":
        raise Misuse(
            f"{file}: run = {settings.run!r}: {prod.settings.experiment} serves {prod.experiment.serve.arm}, and a run ends with "
            "every arm at 0; write run: never, or remove the serve section"
        )
    return PipelineConfiguration(settings=settings, dev=dev, prod=prod)


def _stage(name: str, settings: StageSection, file: str, manifests: Path, region: str) -> StageConfiguration:
    where, experiment = f"{file}: stages.{name}", load(ROOT / settings.experiment)
    if experiment.cluster.region != region:
        raise Misuse(
            f"{where}: {settings.experiment} is in {experiment.cluster.region}, the pipeline in {region}; use one region for both"
        )
    if wrong := unknown_roles(experiment.name):
        raise Misuse(replace(wrong, where=where))
    refuse_elsewhere(settings, experiment, f"{where}.")
    files = read(experiment, manifests)
    return StageConfiguration(name=name, settings=settings, experiment=experiment, files=files)


def unknown_roles(name: str) -> Finding | None:
    """Return what is wrong if the committed execution policy does not let CloudFormation make the roles of an experiment of this name."""
    text = BOOTSTRAP.read_text(encoding="utf-8")
    known = tuple(re.findall(r":role/([\w-]+)\*(?=[,\s])", text.partition("Resources:")[0]))
    if f"{name}-".startswith(known):
        return None
    why = f"the roles of {name} begin with its name, and {BOOTSTRAP.relative_to(ROOT)} allows {', '.join(known)} only"
    return Finding("", None, why, roles_remedy(name))


def roles_remedy(name: str) -> str:
    """Return what lets CloudFormation make the roles of an experiment of this name."""
    prefix, file = f"{name.partition('-')[0]}-", BOOTSTRAP.relative_to(ROOT)
    return f"add role/{prefix}* and instance-profile/{prefix}* to Roles of {file}, and deploy it again in every account (docs/pipeline.md)"
