"""Render all objects of an experiment, one chart per file, in the order in which they are applied."""

from __future__ import annotations

from typing import Any

import cdk8s

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.workloads import admission, artifact_jobs, benchmark_pod, check_jobs, namespace
from cdk8s_charts.workloads.serving import arm_objects, chat_template, promoted_objects
from trnspec.experiment import naming
from trnspec.experiment.arms import Experiment

Objects = list[dict[str, Any]]


def render(experiment: Experiment) -> tuple[ManifestFile, ...]:
    """Return the files in apply order."""
    app = cdk8s.App()
    charts: dict[str, Objects] = {
        "00-namespace": namespace.namespace_objects(experiment),
        "05-network": namespace.policies(experiment),
        "10-claims": namespace.claim_templates(experiment),
        "20-storage": namespace.volumes_and_claims(experiment),
        "21-chat-template": chat_template(experiment),
        "22-fetch": [artifact_jobs.fetching_job(experiment, one) for one in experiment.weights],
        "24-arguments": check_jobs.arguments_objects(experiment),
        f"40-{naming.BENCHMARK_NAME}": benchmark_pod.benchmark_objects(experiment),
        f"45-{naming.LMEVAL_NAME}": [benchmark_pod.quality_job(experiment)]
        if experiment.benchmark.lm_eval
        else [],
        "50-verify": check_jobs.node_objects(experiment),
        "60-service": promoted_objects(experiment),
    }
    files = {name: _placed(cdk8s.Chart(app, name), objects) for name, objects in charts.items() if objects}
    # What depends on an arm is plain data already: crossing to Node and back would take most of the time of a sweep.
    files |= {f"30-{arm.name}": arm_objects(experiment, arm) for arm in experiment.arms}
    jobs = [item for objects in files.values() for item in objects if item["kind"] == "Job"]
    files["15-jobs"] = admission.admission_objects(experiment, jobs)
    made = (ManifestFile(f"{name}.yaml", tuple(objects)) for name, objects in files.items())
    return tuple(sorted(made, key=lambda file: file.name))


def _placed(chart: cdk8s.Chart, objects: Objects) -> Objects:
    """Add plain data as raw objects to a chart; the id of each is its kind and name."""
    for manifest in objects:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        raw = cdk8s.ApiObject(chart, f"{kind}-{name}", api_version=manifest["apiVersion"], kind=kind)
        # The path of the whole document: one crossing to Node an object, of which a sweep has hundreds.
        raw.add_json_patch(cdk8s.JsonPatch.replace("", manifest))
    return [dict(manifest) for manifest in chart.to_json()]
