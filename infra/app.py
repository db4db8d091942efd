"""The CDK app, built the same way for `app.py`, the tests and the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.configuration import configure

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aws_cdk as cdk


def build_app(
    *,
    context: Mapping[str, object] | None = None,
    outdir: str | None = None,
    validation: bool | None = None,
) -> cdk.App:
    """All stacks of one experiment, not yet synthesized.

    `context` overrides cdk.json: `experiment` names the file, `manifests` the folder of what was rendered from it,
    `admins` who administers the cluster, `alarm_email` who hears of alarms, `pipeline_role` which role a pipeline works
    with inside it, `permissions_boundary` which policy bounds every role, `build_images` where images are built. Without
    `outdir` the CDK command line (or CDK_OUTDIR) decides where the templates go. `validation` says whether the synth
    checks the templates against CloudFormation's schemas, which takes most of its time; otherwise CDK_VALIDATION does.
    Raises `experiment.InvalidExperiment` before jsii starts, and `infra.InfraError`.
    """
    configuration = configure(context or {})

    app = cdk_app(configuration.context, outdir=outdir, validation=validation)

    from infra.deployment import add_stacks  # like all that imports the CDK, after the judgement

    add_stacks(
        app,
        experiment=configuration.experiment,
        files=configuration.files,
        admins=configuration.admins,
        alarm_email=configuration.alarm_email,
        pipeline_role=configuration.pipeline_role,
        build_images=configuration.build_images,
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
