"""The CDK app, built the same way for `app.py`, the tests and the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.configuration import DEPLOYMENT, Configuration, configure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import aws_cdk as cdk


def build_app(
    *,
    context: Mapping[str, object] | None = None,
    deployment: Path = DEPLOYMENT,
    outdir: str | None = None,
    validation: bool | None = None,
) -> cdk.App:
    """All stacks of one experiment, not yet synthesized.

    `context` overrides cdk.json: `experiment` names the file, `manifests` the folder of what was rendered from it.
    `deployment` has what lasts. Raises `InvalidExperiment` before jsii starts, and `Misuse`.
    """
    return app_of(configure(context or {}, deployment=deployment), outdir=outdir, validation=validation)


def app_of(
    configuration: Configuration, *, outdir: str | None = None, validation: bool | None = None
) -> cdk.App:
    """The app of a configuration. Without `outdir` the CDK command line (or CDK_OUTDIR) decides where the templates go.
    `validation` says whether the synth checks the templates against CloudFormation's schemas, which takes most of its
    time; otherwise CDK_VALIDATION does."""
    app = cdk_app(configuration.context, outdir=outdir, validation=validation)

    from infra.deployment import add_stacks  # like all that imports the CDK, after the judgement

    add_stacks(
        app,
        experiment=configuration.experiment,
        files=configuration.files,
        lasting=configuration.lasting,
    )
    return app


_NO_TRACES = "aws:cdk:disable-creation-stack-traces"
"""Where in JavaScript a construct was made; `cdk --debug` still asks for it. Not in cdk.json, where the command line warns
of keys that begin with `aws:`."""


def cdk_app(context: Mapping[str, object], *, outdir: str | None, validation: bool | None = None) -> cdk.App:
    """An empty app, which starts jsii: that takes a second."""
    import aws_cdk as cdk

    return cdk.App(
        context={_NO_TRACES: True, **context},
        outdir=outdir,
        analytics_reporting=False,
        tree_metadata=False,  # for IDEs
        builtin_cloud_formation_validation=validation,
    )
