"""The pipeline's CDK app, apart from the experiment's: the experiment's `cdk deploy` makes no pipeline, and this app makes
nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from infra import ROOT
from infra.pipeline.pipeline_file import PipelineConfiguration, read_pipeline
from infra.synthesis import cdk_app, zones_context

if TYPE_CHECKING:
    import aws_cdk as cdk


FILE = ROOT / "pipeline.yaml"


def build_pipeline(
    *, file: Path = FILE, manifests: Path = ROOT / "manifests", outdir: str | None = None
) -> cdk.App:
    """The pipeline and its stages, not yet synthesized.

    Raises `InvalidExperiment` and `Misuse` before jsii starts.
    """
    return app_of(read_pipeline(file, manifests=manifests), outdir=outdir)


def app_of(configuration: PipelineConfiguration, *, outdir: str | None = None) -> cdk.App:
    """The app of a configuration."""
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    for stage in (configuration.dev, configuration.prod):
        context |= zones_context(stage.account, stage.experiment)
    app = cdk_app(context, outdir=outdir)

    from infra.pipeline.pipeline_stack import PipelineStack  # imports the CDK: after the judgement

    PipelineStack(app, "pipeline", configuration=configuration)
    return app
