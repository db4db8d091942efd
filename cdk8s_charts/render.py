"""All charts of an experiment, in the order in which they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cdk8s

from cdk8s_charts.checking import refuse_findings
from cdk8s_charts.errors import ChartError
from cdk8s_charts.foundation import claims_chart, namespace_chart, storage_chart
from cdk8s_charts.llmperf import llmperf_chart
from cdk8s_charts.manifest_file import ManifestFile
from cdk8s_charts.parity import undeclared_differences
from cdk8s_charts.scheduling import refuse_unplaceable
from cdk8s_charts.serving import serving_chart

if TYPE_CHECKING:
    from experiment.arms import Experiment


def render(experiment: Experiment) -> tuple[ManifestFile, ...]:
    """Files in apply order.

    Raises `ChartError` when two arms differ in more than their declared treatment, when a check between objects finds
    something, or when a pod could never be placed; a line a problem.
    """
    app = cdk8s.App()
    charts = [
        namespace_chart(app, experiment),
        claims_chart(app, experiment),
        storage_chart(app, experiment),
        *(serving_chart(app, experiment, arm) for arm in experiment.arms),
        llmperf_chart(app, experiment),
    ]
    files = tuple(
        ManifestFile(f"{chart.node.id}.yaml", tuple(dict(entry) for entry in chart.to_json()))
        for chart in charts
    )
    _refuse_unfair(experiment, files)
    refuse_findings(experiment, files)
    refuse_unplaceable(experiment, files)
    return tuple(sorted(files, key=lambda file: file.name))


def _refuse_unfair(experiment: Experiment, files: tuple[ManifestFile, ...]) -> None:
    deployments = {
        item["metadata"]["name"]: item
        for file in files
        for item in file.objects
        if item["kind"] == "Deployment"
    }
    baseline = deployments[experiment.baseline.name]
    for arm in experiment.arms[1:]:
        extra = undeclared_differences(baseline, deployments[arm.name])
        if extra:
            raise ChartError(
                f"arm {arm.name} differs from {experiment.baseline.name} beyond its treatment: "
                f"{'; '.join(extra)}"
            )
