"""One state of the repository as plain data: experiments resolved, manifests as committed, templates as synthesized.

Each state runs its own copy in a process, so that its own code reads it: names of modules, the schema, the artifact key
and the stacks of BASE may differ from ours. So this path stays, and what it prints may gain keys but keeps those it has.

    PYTHONPATH=TREE/src:TREE python -P TREE/src/trnspec/operations/review/snapshot.py TREE [--templates] [--without experiments/FILE]...
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import BaseModel

from cdk8s_charts.manifests import read
from cdk8s_charts.parity import undeclared_differences
from trnspec.core.findings import Refusal
from trnspec.core.words import count
from trnspec.experiment import cost, load
from trnspec.experiment.compilation import artifact_key

State = dict[str, Any]
_PEOPLE = ("AWS::EKS::AccessEntry", "AWS::SNS::Subscription")
"""Settings with the people whom a stage admits to its cluster, or notifies of alarms."""


class _TemplateLoader(yaml.SafeLoader):
    """A YAML loader for CloudFormation that keeps `!Ref` and `!Sub` as in JSON."""


def _as_json(loader: _TemplateLoader, function: str, node: yaml.ScalarNode) -> State:
    return {function if function == "Ref" else f"Fn::{function}": loader.construct_scalar(node)}


_TemplateLoader.add_multi_constructor("!", _as_json)


def snapshot(*, templates: bool, without: Sequence[str] = ()) -> State:
    """Return the input of `effects.compare`, for the working directory without these files:

    - `experiments`: by name {facts, prompts, arms: {name: {facts, key, usd_per_hour}}, cost, undeclared}
    - `objects`: by experiment and file, the committed objects
    - `templates`: by name of stack; without `templates`, of none
    - `delivery`: the templates of the pipeline, of its stages' own stacks and of the bootstrap's policies
    - `problems`: what kept something from being read, one line each; with one, the rest is not to be compared
    """
    state: State = {"experiments": {}, "objects": {}, "templates": {}, "delivery": {}, "problems": []}
    for path in sorted({*Path("experiments").glob("*.yaml")} - {*map(Path, without)}):
        try:
            experiment = load(path)
            files = read(experiment, Path("manifests"))
        except Refusal as error:
            state["problems"] += error.lines
            continue
        objects = {file.name: [item for item in file.objects if item] for file in files}
        state["objects"][experiment.name] = objects
        state["experiments"][experiment.name] = described(experiment, objects)
        if templates:
            try:
                state["templates"] |= _synthesized(path)
            except Exception as error:  # of whatever kind: a stack may fail in any way
                state["problems"].append(f"{path.name}: no templates ({_first_line(error)})")
    if templates and not state["problems"]:  # which the pipeline would only repeat
        _add_delivery(state)
    return state


def _first_line(error: Exception) -> str:
    """What it says, with paths as they are in the repository."""
    return (str(error) or type(error).__name__).replace(f"{Path.cwd()}/", "").splitlines()[0]


def described(experiment: Any, objects: dict[str, list[dict[str, Any]]]) -> State:
    """An experiment as flat facts, under the names of its file."""
    sections = ("description", "benchmark", "cluster", "token_secret", "serve")
    facts = flat({name: getattr(experiment, name) for name in sections})
    prompts: dict[str, list[Any]] = {name: [] for name in experiment.classes}
    for prompt in experiment.prompts:
        prompts[prompt.class_name].append(prompt)
    for name, those in prompts.items():
        digest = hashlib.sha256("\n".join(map(repr, those)).encode()).hexdigest()[:8]
        facts[f"prompts.{name}"] = f"{count(len(those), 'prompt')} ({digest})"
    costs: State = {"node": cost.node_price(experiment).usd_per_hour}
    costs |= {key: cost.per_hour(getattr(cost, key)(experiment)) for key in ("idle", "running")}
    return {
        "facts": {**facts, "baseline": experiment.arms[0].name},
        "prompts": {name: [_text(one) for one in those] for name, those in prompts.items()},
        "arms": {
            arm.name: {
                "facts": arm_facts(arm),
                "key": artifact_key(arm),
                "usd_per_hour": cost.arm_usd_per_hour(experiment, arm),
            }
            for arm in experiment.arms
        },
        "cost": costs,
        "undeclared": _undeclared(experiment, objects),
    }


def arm_facts(arm: Any) -> dict[str, Any]:
    """What the file says of an arm; of the catalogue only names and the image, since the rest follows from them."""

    def weights(one: Any) -> dict[str, Any]:
        declared = {"like": one.shape_of, "weights": one.address}
        known = {key: value for key, value in declared.items() if value}
        return {"model": {"name": one.model.name}, "revision": one.revision, **known}

    speculation = arm.speculation and {
        "mode": arm.speculation.mode,
        "draft": weights(arm.speculation.draft),
        "num_speculative_tokens": arm.speculation.num_speculative_tokens,
        "draft_max_model_len": arm.speculation.draft_max_model_len,
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


def _text(prompt: Any) -> str:
    """What it asks; of a chat, who says what."""
    if prompt.text is not None:
        return str(prompt.text)
    return "\n".join(f"{role}: {content}" for role, content in prompt.messages)


def _undeclared(experiment: Any, objects: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Where an arm differs from the baseline of its batch beyond its treatment, by this state's own notion of it."""
    items = (item for items in objects.values() for item in items if item["kind"] == "Deployment")
    deployments = {item["metadata"]["name"]: item for item in items}
    first = {arm.serving.max_num_seqs: arm for arm in reversed(experiment.arms)}
    differences = {}
    for arm in experiment.arms:
        base = first[arm.serving.max_num_seqs]
        if base is not arm and {base.name, arm.name} <= deployments.keys():
            pair = deployments[base.name], deployments[arm.name]
            differences[arm.name] = sorted(undeclared_differences(*pair, engine=(*base.engine, *arm.engine)))
    return differences


def _synthesized(path: Path) -> State:
    """Templates by name of stack."""
    from infra.synthesis import app_of, configure

    with tempfile.TemporaryDirectory(prefix="review-") as outdir:
        assembly = app_of(configure({"experiment": str(path)}), outdir=outdir).synth()
        return {stack.stack_name: _without_paths(stack.template) for stack in assembly.stacks_recursively}


def _add_delivery(state: State) -> None:
    file, bootstrap = Path("pipeline.yaml"), Path("infra/bootstrap/policies.yaml")
    if not file.exists():
        return
    try:
        policies = yaml.load(bootstrap.read_text(encoding="utf-8"), Loader=_TemplateLoader)
        state["delivery"] = {str(bootstrap): policies, **_pipeline(file)}
    except Exception as error:  # of whatever kind: a stack may fail in any way
        state["problems"].append(f"{file}: no templates ({_first_line(error)})")


def _pipeline(file: Path) -> State:
    """The pipeline's stack, what its stages have beside the experiment's stacks, which are described already, and the people
    of each stage."""
    from infra.pipeline.pipeline_file import read_pipeline
    from infra.synthesis import pipeline_app

    templates = {}
    with tempfile.TemporaryDirectory(prefix="review-") as outdir:
        for stack in pipeline_app(read_pipeline(file), outdir=outdir).synth().stacks_recursively:
            template = _without_paths(stack.template)
            *around, name = stack.hierarchical_id.split("/")
            if around:  # the part that the stack is, whatever the experiment
                name = stack.stack_name.removeprefix(f"{stack.tags.get('experiment')}-")
            name = "/".join([*around, name])
            if not around or "/delivery" in name:
                templates[name] = without_hashes(template)
            elif name.endswith(("/cluster", "/observability")):
                resources = template["Resources"].items()
                people = {key: one for key, one in resources if one["Type"] in _PEOPLE}
                templates[name] = {"Resources": people}
    return templates


def _without_paths(template: State) -> State:
    """Where in the code a resource is made says nothing about what is made."""
    resources = {
        name: {key: value for key, value in one.items() if key != "Metadata"}
        for name, one in template["Resources"].items()
    }
    return {**template, "Resources": resources}


def without_hashes(template: Any) -> Any:
    """The delivery carries the sources: the hash of their archive changes with every line of the repository, and says
    nothing about what the pipeline does or may."""
    return json.loads(re.sub(r"\b[0-9a-f]{64}\b", "<hash>", json.dumps(template)))


@click.command()
@click.argument("tree", type=click.Path(path_type=Path))
@click.option("--templates", is_flag=True)
@click.option("--without", multiple=True)
def main(tree: Path, templates: bool, without: tuple[str, ...]) -> None:
    """Print the snapshot as JSON."""
    os.chdir(tree)
    os.environ.setdefault("CDK_VALIDATION", "false")  # the tests have it on; here it would triple the time
    print(json.dumps(snapshot(templates=templates, without=without)))


if __name__ == "__main__":
    main()
