"""What a synth is told: cdk.json first, then what the command line says with `-c key=value`.

Pure, so that a wrong experiment is refused before jsii starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cdk8s_charts.errors import ChartError
from cdk8s_charts.manifest_file import ManifestFile, read
from experiment import Experiment, load
from infra.errors import InfraError

ROOT = Path(__file__).resolve().parent.parent
_ADDRESS = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")
BUILDERS = ("docker", "codebuild")
_POLICY_NAME = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)
_BOUNDARY = "@aws-cdk/core:permissionsBoundary"
_T = TypeVar("_T")
_PRINCIPAL = re.compile(
    r"arn:aws[a-z-]*:iam::\d{12}:(role(?!/aws-service-role/)|user)/[\w+=,.@/-]+", re.ASCII
)
"""EKS admits no service-linked role (https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html)."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """All input of the app."""

    experiment: Experiment
    files: tuple[ManifestFile, ...]
    """The manifests as they were reviewed, in apply order."""
    admins: tuple[str, ...]
    """ARNs of IAM roles and users that administer the cluster with kubectl; without any, only `cdk deploy` can."""
    alarm_email: str
    """Who gets a mail when an alarm goes off; nobody where it is empty."""
    pipeline_role: str | None
    """ARN of the role with which a pipeline works inside the cluster."""
    build_images: str
    """Where container images are built: `docker` on this machine, or `codebuild`."""
    context: Mapping[str, object]
    """Feature flags and keys as CDK takes them."""


def configure(context: Mapping[str, object]) -> Configuration:
    """Read cdk.json, let `context` override it, load the experiment that it names (relative to the repository) and the
    manifests that were rendered from it.

    Raises `experiment.InvalidExperiment`, and `InfraError` with a line for everything else that is wrong.
    """
    merged = {**json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"], **context}
    experiment = load(_experiment_file(merged["experiment"]))
    if experiment.lab_only:
        raise InfraError(
            f"context experiment = {merged['experiment']!r}: {experiment.name} runs in the lab only, there is nothing to "
            "deploy; run scripts/lab, or use -c experiment=experiments/qwen3-32b.yaml"
        )
    problems: list[str] = []

    def judged(judge: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return judge()
        except (ChartError, InfraError) as error:
            problems.append(str(error))
            return otherwise

    admins: tuple[str, ...] = judged(lambda: _principals("admins", merged["admins"]), ())
    boundary: Mapping[str, object] = judged(lambda: _boundary(merged["permissions_boundary"]), {})
    configuration = Configuration(
        experiment=experiment,
        files=judged(lambda: read(experiment, ROOT / str(merged["manifests"])), ()),
        alarm_email=judged(lambda: _address(merged["alarm_email"]), ""),
        admins=admins,
        pipeline_role=judged(lambda: _pipeline_role(merged["pipeline_role"], admins), None),
        build_images=judged(lambda: _builder(merged["build_images"]), ""),
        context={**merged, **boundary},
    )
    if problems:
        raise InfraError("\n".join(problems))
    return configuration


def _experiment_file(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise InfraError(
            f"context experiment = {value!r}: is no path; use -c experiment=experiments/qwen3-32b.yaml"
        )
    path = Path(value)
    return path if path.absolute() == ROOT / path else ROOT / path  # short in messages where it can be


def _principals(key: str, value: object) -> tuple[str, ...]:
    names = [name.strip() for name in str(value).split(",") if name.strip()]
    for name in names:
        if not _PRINCIPAL.fullmatch(name):
            raise InfraError(
                f"context {key} = {name!r}: is no ARN of an IAM role or user; "
                f"use -c {key}=arn:aws:iam::111122223333:role/name, several with commas"
            )
    return tuple(dict.fromkeys(names))


def _address(value: object) -> str:
    text = str(value).strip()
    if text and not _ADDRESS.fullmatch(text):
        raise InfraError(
            f"context alarm_email = {text!r}: is no address; use -c alarm_email=team@example.com, or leave it out"
        )
    return text


def _pipeline_role(value: object, admins: tuple[str, ...]) -> str | None:
    roles = _principals("pipeline_role", value)
    if len(roles) > 1:
        raise InfraError(f"context pipeline_role = {value!r}: names {len(roles)} roles; a pipeline has one")
    role = roles[0] if roles else None
    if role in admins:
        raise InfraError(
            f"context pipeline_role = {role!r}: is among the admins too, and EKS keeps one access entry a principal; "
            "leave it out of one of the two"
        )
    return role


def _builder(value: object) -> str:
    if value not in BUILDERS:
        raise InfraError(
            f"context build_images = {value!r}: nobody builds so; use -c build_images={' or '.join(BUILDERS)}"
        )
    return str(value)


def _boundary(value: object) -> dict[str, object]:
    """CDK's own key wants an object, which `-c` cannot say."""
    name = str(value).strip()
    if name and not _POLICY_NAME.fullmatch(name):
        raise InfraError(
            f"context permissions_boundary = {name!r}: is no name of an IAM policy; "
            f"use -c permissions_boundary=speculation-boundary, or leave it out"
        )
    return {_BOUNDARY: {"name": name}} if name else {}
