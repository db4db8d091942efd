"""One state of the repository's files, read by this tree's code: experiments, committed manifests, templates.

BASE is read like this, so no code of BASE is run. Where this code cannot read it, that is the answer of the review.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import ManifestFile, read
from trnspec.core.findings import Misuse, Refusal
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import ARTIFACT_KEY, NAME, STEP

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name that all versions of an object share."""
DEPLOYMENT = Path("deployment.yaml")


@dataclass(frozen=True, kw_only=True)
class FileState:
    """What the files of one side hold, by the name of the experiment."""

    experiments: Mapping[str, Experiment]
    paths: Mapping[str, Path]
    """The experiments' files."""
    manifests: Mapping[str, tuple[ManifestFile, ...]]
    deployment: str
    """The text of deployment.yaml."""


def read_state(tree: Path, *, fresh: bool, without: Sequence[str] = ()) -> FileState:
    """Read the files in `tree`, but for the experiments `without`; if `fresh`, manifests must be rendered by this code.

    Raises `Misuse` with a line for each problem.
    """
    experiments, paths, manifests = {}, {}, {}
    problems = list[str]()
    with contextlib.chdir(tree):  # messages then name the paths of the repository
        for path in sorted({*Path("experiments").glob("*.yaml")} - {*map(Path, without)}):
            try:
                experiment = load(path)
                manifests[experiment.name] = read(experiment, Path("manifests"), fresh=fresh)
            except Refusal as error:
                problems += error.lines
                continue
            experiments[experiment.name], paths[experiment.name] = experiment, tree / path
        deployment = DEPLOYMENT.read_text(encoding="utf-8") if DEPLOYMENT.exists() else ""
    if problems:
        raise Misuse(*problems)
    return FileState(experiments=experiments, paths=paths, manifests=manifests, deployment=deployment)


def synthesized(state: FileState, name: str, outdir: Path) -> dict[str, Any]:
    """Write the templates of an experiment to `outdir`, and return them by name of stack. Raises `Misuse`."""
    from infra.synthesis import app_of, configure  # starts jsii

    path = state.paths[name]
    context, deployment = {"experiment": str(path)}, path.parents[1] / DEPLOYMENT
    try:
        configuration = configure(context, deployment=deployment, files=state.manifests[name])
        assembly = app_of(configuration, outdir=str(outdir), validation=False).synth()
    except RuntimeError as error:
        raise Misuse(f"{path.name}: no templates ({str(error).splitlines()[0]})") from None
    return {stack.stack_name: _without_paths(stack.template) for stack in assembly.stacks}


def _without_paths(template: Mapping[str, Any]) -> dict[str, Any]:
    """Remove `Metadata`: it says where in the code a resource is made, not what is made."""
    resources = {
        name: {key: value for key, value in one.items() if key != "Metadata"}
        for name, one in template["Resources"].items()
    }
    return {**template, "Resources": resources}


def by_key(files: Sequence[ManifestFile]) -> dict[Key, Object]:
    """Return the objects of an experiment by names without a hash of their content. The name of a step's Job is all hash, so its label
    counts."""
    found = {}
    for item in (item for file in files for item in file.objects if item):
        metadata = item["metadata"]
        labels = metadata.get("labels", {})
        name = labels[NAME] if STEP in labels else re.sub(r"-[0-9a-f]{8}$", "", metadata["name"])
        found[item["kind"], metadata.get("namespace", ""), name] = item
    return found


def artifact_keys(objects: Mapping[Key, Object]) -> dict[str, str]:
    """Return the artifact key of each arm from its rendered Deployment. This code would compute another key for BASE if the
    catalogue changed."""
    deployments = (item for (kind, *_), item in objects.items() if kind == "Deployment")
    noted = {one["metadata"]["name"]: one["spec"]["template"]["metadata"] for one in deployments}
    found = {name: one.get("annotations", {}).get(ARTIFACT_KEY) for name, one in noted.items()}
    return {name: str(key) for name, key in found.items() if key}
