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
    with inside it, `build_images` where images are built. Without `outdir` the CDK command line (or CDK_OUTDIR) decides
    where the templates go. `validation` says whether the synth checks the templates against CloudFormation's schemas,
    which takes most of its time; otherwise CDK_VALIDATION does.
    Raises `experiment.InvalidExperiment` before jsii starts, and `infra.InfraError`.
    """
    configuration = configure(context or {})

    import aws_cdk as cdk  # after the judgement: starting jsii takes a second

    from infra.deployment import add_stacks

    app = cdk.App(
        context=dict(configuration.context),
        outdir=outdir,
        analytics_reporting=False,
        # Of every construct CDK would note where in JavaScript it was made, and draw a tree for IDEs: a tenth of the
        # synth, which says nothing of the Python here.
        stack_traces=False,
        tree_metadata=False,
        builtin_cloud_formation_validation=validation,
    )
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
