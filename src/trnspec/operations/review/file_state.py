"""One state of the repository's files, read by this tree's code: experiments, committed manifests, settings, templates.

BASE is read like this, so no code of BASE is run. Where this code cannot read it, that is the answer of the review.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from cdk8s_charts.manifests import ManifestFile, read
from trnspec.core.findings import Misuse, Refusal
from trnspec.experiment import Arm, Experiment, load
from trnspec.experiment.naming import ARTIFACT_KEY, NAME, STEP

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name that all versions of an object share."""
SETTINGS = (
    "deployment.yaml",
    "pipeline.yaml",
    "infra/bootstrap/operator.yaml",
    "infra/bootstrap/policies.yaml",
)


class _TemplateLoader(yaml.SafeLoader):
    """A YAML loader for CloudFormation that keeps `!Ref` and `!Sub` as in JSON."""


_TemplateLoader.add_multi_constructor(
    "!", lambda loader, function, node: {function: loader.construct_scalar(node)}
)


@dataclass(frozen=True, kw_only=True)
class FileState:
    experiments: Mapping[str, Experiment]
    paths: Mapping[str, Path]
    """The experiments' files."""
    manifests: Mapping[str, tuple[ManifestFile, ...]]
    settings: Mapping[str, Any]
    """What deployment.yaml, pipeline.yaml and the bootstrap's templates hold."""


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
        try:
            settings = {name: _parsed(Path(name)) for name in SETTINGS if Path(name).exists()}
        except (OSError, ValueError, yaml.YAMLError) as error:
            problems.append(" ".join(str(error).split()))
    if problems:
        raise Misuse(*problems)
    return FileState(experiments=experiments, paths=paths, manifests=manifests, settings=settings)  # pyrefly: ignore[unbound-name]  # else there are problems


def _parsed(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_TemplateLoader)


def synthesized(state: FileState, name: str, outdir: Path) -> dict[str, Any]:
    """Write the templates of an experiment to `outdir`, and return them by name of stack. Raises `Misuse`."""
    from infra.synthesis import app_of, configure  # starts jsii

    path = state.paths[name]
    context, deployment = {"experiment": str(path)}, path.parents[1] / "deployment.yaml"
    try:
        configuration = configure(context, deployment=deployment, files=state.manifests[name])
        assembly = app_of(configuration, outdir=str(outdir), validation=False).synth()
    except RuntimeError as error:
        raise Misuse(f"{path.name}: no templates ({str(error).splitlines()[0]})") from None
    return {stack.stack_name: _without_paths(stack.template) for stack in assembly.stacks}


def _without_paths(template: Mapping[str, Any]) -> dict[str, Any]:
    """Where in the code a resource is made says nothing about what is made."""
    resources = {
        name: {key: value for key, value in one.items() if key != "Metadata"}
        for name, one in template["Resources"].items()
    }
    return {**template, "Resources": resources}


def facts(experiment: Experiment) -> dict[str, Any]:
    """What the file says of the whole, under its keys, as one level."""
    sections = ("benchmark", "cluster", "token_secret", "serve")
    return flat({name: getattr(experiment, name) for name in sections})


def arm_facts(arm: Arm) -> dict[str, Any]:
    """What the file says of an arm; of the catalogue only names and the image, since the rest follows from them."""

    def weights(one: Any) -> dict[str, Any]:
        declared = {"like": one.shape_of, "weights": one.address}
        known = {key: value for key, value in declared.items() if value}
        return {"model": {"name": one.model.name}, "revision": one.revision, **known}

    speculation = arm.speculation and {
        "mode": arm.speculation.mode,
        "draft": weights(arm.speculation.draft),
        "num_speculative_tokens": arm.speculation.num_speculative_tokens,
    }
    return flat(
        {
            "target": weights(arm.target),
            "runtime": {"name": arm.runtime.name, "image": arm.runtime.image},
            "serving": arm.serving,
            "speculation": speculation,
            "engine": arm.engine or None,
            "scheduler": arm.scheduler,
        }
    )


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested data as one level, `a.b.c: leaf`; lists and what JSON lacks as text."""
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        inner = [flat(value[name], f"{path}.{name}".strip(".")) for name in value]
        return {key: leaf for one in inner for key, leaf in one.items()}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return {path: value}
    return {path: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)}


def by_key(files: Sequence[ManifestFile]) -> dict[Key, Object]:
    """Return the objects of an experiment. Their names are without the hash of their content; Jobs of a step change their whole name
    with what they do."""
    found = {}
    for item in (item for file in files for item in file.objects if item):
        metadata = item["metadata"]
        labels = metadata.get("labels", {})
        name = labels[NAME] if STEP in labels else re.sub(r"-[0-9a-f]{8}$", "", metadata["name"])
        found[item["kind"], metadata.get("namespace", ""), name] = item
    return found


def artifact_keys(objects: Mapping[Key, Object]) -> dict[str, str]:
    """Return the artifact key of each arm, as its Deployment was rendered with it: this code would compute another one for BASE where
    the catalogue changed."""
    deployments = (item for (kind, *_), item in objects.items() if kind == "Deployment")
    noted = {one["metadata"]["name"]: one["spec"]["template"]["metadata"] for one in deployments}
    found = {name: one.get("annotations", {}).get(ARTIFACT_KEY) for name, one in noted.items()}
    return {name: str(key) for name, key in found.items() if key}
