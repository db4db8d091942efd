"""The input of a synth, checked before jsii starts, and the apps that are built from it: the same for `app.py`, `pipeline.py`, the
tests and the scripts.

The input of the experiment's app is which experiment (cdk.json, or `-c experiment=`), and the settings that stay between deployments
(deployment.yaml). The pipeline's app is apart from it: the experiment's `cdk deploy` makes no pipeline, and that app makes nothing
else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdk8s_charts.manifests import ManifestFile, read
from infra.deployment_file import (
    KEYS,
    NAME,
    DeployedExperiment,
    DeploymentSettings,
    read_deployment,
    refuse_elsewhere,
)
from infra.pipeline.pipeline_file import PipelineConfiguration
from trnspec.core.checkout import ROOT
from trnspec.core.findings import Finding, Misuse
from trnspec.experiment import Experiment, load

if TYPE_CHECKING:
    import aws_cdk as cdk  # for types alone; imported at run time after the check

DEPLOYMENT = ROOT / NAME
_BOUNDARY = "@aws-cdk/core:permissionsBoundary"
_OF_CDK = {"aws:cdk:disable-creation-stack-traces": True, "aws:cdk:enable-path-metadata": True}
"""No trace of where in JavaScript a construct was made, for which `cdk --debug` still asks; and at every resource the path of its
construct, as the command line asks for too. Not in cdk.json, where the command line warns of keys that begin with `aws:`."""


@dataclass(frozen=True, kw_only=True)
class Configuration(DeployedExperiment):
    settings: DeploymentSettings
    context: Mapping[str, object]
    """Feature flags and keys as CDK takes them."""


def configure(
    context: Mapping[str, object],
    *,
    deployment: Path = DEPLOYMENT,
    files: tuple[ManifestFile, ...] | None = None,
) -> Configuration:
    """Read cdk.json, let `context` override it, load the experiment that it names (relative to the repository), the
    manifests that were rendered from it (or `files`), and the settings of deployment.yaml.

    Raises `InvalidExperiment`, and `Misuse` for everything else that is wrong.
    """
    merged = {**_context(), **context}
    named = merged["experiment"]
    if not isinstance(named, str) or not named:
        raise Misuse(
            f"context experiment = {named!r}: is not a path; use -c experiment=experiments/qwen3-32b.yaml"
        )
    path = Path(named)
    experiment = load(path if path.absolute() == ROOT / path else ROOT / path)  # short in messages
    if given := [key for key in KEYS if key in merged]:
        # The next deployment without `-c` would undo them.
        why = "the next deployment would not know it"
        raise Misuse(
            *(
                Finding(f"context {key}", None, why, f"write {key} into {NAME} instead of -c {key}=")
                for key in given
            )
        )
    settings = read_deployment(deployment)
    refuse_elsewhere(settings, experiment, f"{deployment.name}: ")
    reviewed = files or read(experiment, ROOT / str(merged["manifests"]))
    # CDK's own key needs an object.
    boundary = {_BOUNDARY: {"name": name}} if (name := settings.permissions_boundary) else {}
    zones = _zones(settings.account, experiment) if settings.account else {}
    context = {**merged, **boundary, **zones}
    return Configuration(experiment=experiment, files=reviewed, settings=settings, context=context)


def _context() -> dict[str, object]:
    context: dict[str, object] = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    return context


def _zones(account: str, experiment: Experiment) -> dict[str, object]:
    """Return the zones that CDK would look up: if a stack has an account, CDK compares a network's zones with the account's."""
    region = experiment.cluster.region
    return {f"availability-zones:account={account}:region={region}": list(experiment.zones)}


def app_of(
    configuration: Configuration, *, outdir: str | None = None, validation: bool | None = None
) -> cdk.App:
    """Return the app with all stacks of one experiment, not yet synthesized. Without `outdir` the CDK command line (or CDK_OUTDIR) decides where the templates go.
    `validation` says whether the synth checks the templates by CloudFormation's schemas, which takes most of its time; otherwise
    CDK_VALIDATION does (`cdk synth --no-validation` sets it to false)."""
    app = cdk_app(configuration.context, outdir=outdir, validation=validation)

    from infra.deployment import add_stacks  # imports the CDK, so it comes after the checks

    add_stacks(app, configuration)
    return app


def pipeline_app(configuration: PipelineConfiguration, *, outdir: str | None = None) -> cdk.App:
    """Return the app of the pipeline and its stages, not yet synthesized."""
    stages = (configuration.dev, configuration.prod)
    zones = [_zones(stage.settings.account, stage.experiment) for stage in stages]
    app = cdk_app({**_context(), **zones[0], **zones[1]}, outdir=outdir)

    from infra.pipeline.pipeline_stack import PipelineStack

    PipelineStack(app, "pipeline", configuration=configuration)
    return app


def synthesize(app: cdk.App) -> int:
    """Synthesize and return the exit code: 1 if the validation has findings, which the CDK has then printed."""
    try:
        app.synth()
    except RuntimeError as error:
        if not str(error).startswith("ValidationFailed"):
            raise
        print(error, file=sys.stderr)
        return 1
    return 0


def cdk_app(context: Mapping[str, object], *, outdir: str | None, validation: bool | None = None) -> cdk.App:
    """Create an empty app. This starts jsii, which takes a second."""
    import aws_cdk as cdk

    if validation is None:
        validation = os.environ.get("CDK_VALIDATION") != "false"
    return cdk.App(
        context={**_OF_CDK, **context},
        outdir=outdir,
        analytics_reporting=False,
        tree_metadata=False,  # for IDEs
        builtin_cloud_formation_validation=validation,
    )
