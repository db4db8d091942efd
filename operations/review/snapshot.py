"""One state of the repository as plain data: experiments resolved, manifests as committed, templates as synthesized.

Each state runs its own copy in a process, so that its own code reads it: names of modules, the schema, the artifact key
and the stacks of BASE may differ from ours. So this path stays, and what it prints may gain keys but keeps those it has.

    PYTHONPATH=TREE python -P TREE/operations/review/snapshot.py TREE [--templates]
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TemplateLoader(yaml.SafeLoader):
    """CloudFormation's YAML, whose `!Ref` and `!Sub` stay as JSON has them."""


def _function(key: str) -> Any:
    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> dict[str, Any]:
        return {key: loader.construct_scalar(node)}

    return construct


_TemplateLoader.add_constructor("!Ref", _function("Ref"))
_TemplateLoader.add_constructor("!Sub", _function("Fn::Sub"))


def snapshot(tree: Path, *, templates: bool) -> dict[str, Any]:
    """What `report.compare` takes:

    - `experiments`: by name {facts, prompts, arms: {name: {facts, key, usd_per_hour}}, cost, undeclared}
    - `objects`: by experiment and file, the committed objects
    - `templates`: by name of stack; without `templates`, of none
    - `delivery`: the templates of the pipeline, of its stages' own stacks and of the bootstrap's policies
    - `problems`: what kept something from being read, a line each; with one, the rest is not to be compared
    """
    state: dict[str, Any] = {
        "experiments": {},
        "objects": {},
        "templates": {},
        "delivery": {},
        "problems": [],
    }
    for path in sorted((tree / "experiments").glob("*.yaml")):
        _add(state, tree, path, templates=templates)
    if templates and not state["problems"]:  # which the pipeline would only repeat
        _add_delivery(state, tree)
    return state


def _add(state: dict[str, Any], tree: Path, path: Path, *, templates: bool) -> None:
    from experiment import InvalidExperiment, load

    try:
        experiment = load(path)
    except InvalidExperiment as error:
        state["problems"] += _lines(error, tree)
        return
    name = experiment.name
    state["objects"][name] = committed(tree / "manifests" / name)
    state["experiments"][name] = described(experiment, state["objects"][name])
    if stale := _staleness(experiment, tree):
        state["problems"].append(stale)
    elif templates and not lab_only(experiment):
        try:
            state["templates"] |= synthesized(path)
        except Exception as error:  # of whatever kind: it is another state's code
            state["problems"].append(f"{path.name}: no templates ({_lines(error, tree)[0]})")


def _lines(error: Exception, tree: Path) -> list[str]:
    """What it says, with paths as they are in the repository."""
    return (str(error) or type(error).__name__).replace(f"{tree}/", "").splitlines()


def described(experiment: Any, objects: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """An experiment as flat facts."""
    from experiment.compilation import artifact_key
    from experiment.cost import arm_usd_per_hour

    lab = lab_only(experiment)
    return {
        "facts": _experiment_facts(experiment),
        "prompts": _prompt_texts(experiment),
        "arms": {
            arm.name: {
                "facts": flat(arm),
                "key": artifact_key(arm),
                "usd_per_hour": None if lab else arm_usd_per_hour(experiment, arm),
            }
            for arm in experiment.arms
        },
        "cost": {} if lab else _cost(experiment),
        "undeclared": _undeclared(experiment, objects),
    }


def lab_only(experiment: Any) -> bool:
    """Whether it has nothing on AWS."""
    return any(arm.runtime.lab_only for arm in experiment.arms)


def committed(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The objects of each file, as they were reviewed."""
    return {
        path.name: [item for item in yaml.load_all(path.read_text(encoding="utf-8"), Loader=_Loader) if item]
        for path in sorted(folder.glob("*.yaml"))
    }


def synthesized(path: Path) -> dict[str, Any]:
    """Templates by name of stack."""
    from infra.synthesis import build_app

    with tempfile.TemporaryDirectory(prefix="review-") as outdir:
        assembly = build_app(context={"experiment": str(path)}, outdir=outdir).synth()
        return {stack.stack_name: stack.template for stack in assembly.stacks_recursively}


def _add_delivery(state: dict[str, Any], tree: Path) -> None:
    if not (tree / "pipeline.yaml").exists():
        return
    bootstrap = tree / "infra" / "bootstrap" / "policies.yaml"
    try:
        state["delivery"]["infra/bootstrap/policies.yaml"] = yaml.load(
            bootstrap.read_text(encoding="utf-8"), Loader=_TemplateLoader
        )
        state["delivery"] |= _pipeline(tree / "pipeline.yaml")
    except Exception as error:  # of whatever kind: it is another state's code
        state["problems"].append(f"pipeline.yaml: no templates ({_lines(error, tree)[0]})")


def _pipeline(file: Path) -> dict[str, Any]:
    """The pipeline's stack, what its stages have beside the experiment's stacks, which are described already, and whom
    each stage lets into its cluster and tells of alarms."""
    from infra.pipeline.pipeline_app import build_pipeline

    with tempfile.TemporaryDirectory(prefix="review-") as outdir:
        assembly = build_pipeline(file=file, outdir=outdir).synth()
        found = {}
        for stack in assembly.stacks_recursively:
            name = stack.hierarchical_id
            if "/" not in name or "/delivery" in name:
                found[name] = without_hashes(stack.template)
            elif name.endswith(("/cluster", "/observability")):
                found[name] = {"Resources": _people(stack.template["Resources"])}
        return found


def _people(resources: dict[str, Any]) -> dict[str, Any]:
    """What names somebody, and differs from stage to stage."""
    types = ("AWS::EKS::AccessEntry", "AWS::SNS::Subscription")
    return {name: one for name, one in resources.items() if one["Type"] in types}


def without_hashes(template: Any) -> Any:
    """The delivery carries the sources: the hash of their archive changes with every line of the repository, and says
    nothing about what the pipeline does or may."""
    return json.loads(re.sub(r"\b[0-9a-f]{64}\b", "<hash>", json.dumps(template)))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested data as one level, `a.b.c: leaf`; lists and what JSON lacks as text."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        return {
            key: leaf
            for name in value
            for key, leaf in flat(value[name], f"{path}.{name}".strip(".")).items()
        }
    if isinstance(value, (str, int, float, bool)) or value is None:
        return {path: value}
    if isinstance(value, (set, frozenset)):
        value = sorted(map(str, value))
    return {path: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)}


def _experiment_facts(experiment: Any) -> dict[str, Any]:
    facts = flat(experiment)
    apart = ("arms", "prompts", "name")
    kept = {path: value for path, value in facts.items() if path.split(".")[0] not in apart}
    return {**kept, **_prompt_facts(experiment), "baseline": experiment.arms[0].name}


def _prompt_facts(experiment: Any) -> dict[str, Any]:
    facts = {}
    for class_name in experiment.classes:
        prompts = [repr(prompt) for prompt in experiment.prompts if prompt.class_name == class_name]
        digest = hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:8]
        facts[f"prompts.{class_name}"] = f"{len(prompts)} prompts ({digest})"
    return facts


def _prompt_texts(experiment: Any) -> dict[str, list[str]]:
    """By class, in the order of the file; of a chat, who says what."""
    return {
        class_name: [
            prompt.text
            if prompt.text is not None
            else "\n".join(f"{role}: {content}" for role, content in prompt.messages)
            for prompt in experiment.prompts
            if prompt.class_name == class_name
        ]
        for class_name in experiment.classes
    }


def _cost(experiment: Any) -> dict[str, float]:
    from experiment import cost
    from experiment.catalogue.prices import TRN2_ON_DEMAND

    node = TRN2_ON_DEMAND.get(experiment.instance.name)
    return {
        "node": node.usd_per_hour if node else 0.0,
        "idle": cost.per_hour(cost.idle(experiment)),
        "running": cost.per_hour(cost.running(experiment)),
    }


def _undeclared(experiment: Any, objects: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Where an arm differs from the baseline beyond its treatment, by this state's own notion of it."""
    from cdk8s_charts.parity import undeclared_differences

    deployments = {
        item["metadata"]["name"]: item
        for items in objects.values()
        for item in items
        if item["kind"] == "Deployment"
    }
    first = experiment.arms[0]
    baseline = deployments.get(first.name)
    return {
        arm.name: sorted(
            undeclared_differences(baseline, deployments[arm.name], engine=(*first.engine, *arm.engine))
        )
        for arm in experiment.arms[1:]
        if baseline and arm.name in deployments
    }


def _staleness(experiment: Any, tree: Path) -> str | None:
    from cdk8s_charts.manifests import read
    from experiment.finding import Misuse

    try:
        read(experiment, tree / "manifests")
    except Misuse as error:
        return str(error).replace(f"{tree}/", "")
    return None


def main() -> int:
    """Print the snapshot as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--templates", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("CDK_VALIDATION", "false")  # the tests have it on; here it would triple the time
    print(json.dumps(snapshot(options.tree.resolve(), templates=options.templates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
