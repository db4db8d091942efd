"""All charts of an experiment, in the order in which they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cdk8s

from cdk8s_charts.argument_proof import arguments_chart
from cdk8s_charts.batch import batch_chart
from cdk8s_charts.fetching import fetch_chart
from cdk8s_charts.foundation import claims_chart, namespace_chart, storage_chart
from cdk8s_charts.labels import LAB_ONLY, LAB_ONLY_TEXT
from cdk8s_charts.llmperf import llmperf_chart
from cdk8s_charts.lmeval import lmeval_chart
from cdk8s_charts.manifest_file import ManifestFile
from cdk8s_charts.network_policy import network_chart
from cdk8s_charts.promoted import promoted_charts
from cdk8s_charts.serving import serving_file
from cdk8s_charts.verifying import verify_chart

if TYPE_CHECKING:
    from experiment.arms import Experiment


def render(experiment: Experiment) -> tuple[ManifestFile, ...]:
    """Files in apply order.

    An experiment of the lab is rendered by the same charts, without what stands on devices, and marked: the lab starts
    what it reads there.
    """
    app = cdk8s.App()
    charts = [namespace_chart(app, experiment), network_chart(app, experiment)]
    charts += [claims_chart(app, experiment), storage_chart(app, experiment)]
    charts += [fetch_chart(app, experiment), arguments_chart(app, experiment)]
    if experiment.batch_arms:
        charts.append(batch_chart(app, experiment))
    charts.append(llmperf_chart(app, experiment))
    if experiment.benchmark.lm_eval is not None:
        charts.append(lmeval_chart(app, experiment))
    charts.append(verify_chart(app, experiment))
    charts += promoted_charts(app, experiment)
    files = tuple(
        ManifestFile(f"{chart.node.id}.yaml", tuple(dict(entry) for entry in chart.to_json()))
        for chart in charts
    )
    files = tuple(file for file in files if file.objects)
    files += tuple(serving_file(experiment, arm) for arm in experiment.served_arms)
    if experiment.lab_only:
        files = tuple(_marked(file) for file in files)
    return tuple(sorted(files, key=lambda file: file.name))


def _marked(file: ManifestFile) -> ManifestFile:
    """The same objects, each of which says that it is never applied."""
    mark = {LAB_ONLY: LAB_ONLY_TEXT}
    objects = []
    for item in file.objects:
        metadata = item["metadata"]
        annotations = {**metadata.get("annotations", {}), **mark}
        objects.append({**item, "metadata": {**metadata, "annotations": annotations}})
    return ManifestFile(file.name, tuple(objects))
