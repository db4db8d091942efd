"""Fetching and compiling: who does it, where, released by whom, and that a repetition is harmless."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cdk8s_charts.parity import options
from cdk8s_charts.workloads.artifact_jobs import fetching_job
from experiment import Experiment
from experiment.naming import ARTIFACT_KEY
from store.__main__ import door
from tests.cdk8s_charts.objects import Case, Object, Pod, committed, named, pods_of
from tests.cdk8s_charts.variations import rendered
from tests.conftest import REFERENCE


def test_a_token_is_a_file_from_the_named_secret_and_stands_in_no_command(reference: Experiment) -> None:
    gated = replace(reference, token_secret="hf-token")
    pod = Pod(fetching_job(gated, gated.weights[0]))
    assert pod.volumes["token"]["secret"]["secretName"] == "hf-token"
    (container,) = pod.containers
    assert container["args"][-2:] == ["--token-file", "/token/token"]
    assert "token" not in str(container.get("env"))
    assert "token" not in Pod(fetching_job(reference, reference.weights[0])).volumes


def test_a_model_of_ones_own_is_fetched_compared_served_and_measured_under_its_name(
    reference: Experiment,
) -> None:
    base = reference.baseline.target
    mine = replace(base, model=replace(base.model, name="my-org/mine"), shape_of=base.model.name)
    objects = rendered(replace(reference, arms=tuple(replace(arm, target=mine) for arm in reference.arms)))
    assert base.model.name not in json.dumps(objects)
    for server in pods_of(named(objects, "Deployment").values()):
        assert options(server.container("vllm")["command"])["--served-model-name"] == "my-org/mine"
        assert "my-org/mine/unpinned" in json.dumps(server.spec)
    assert not _artifacts(committed(REFERENCE)) & _artifacts(objects)
    (fetch,) = [job for job in named(objects, "Job").values() if '"my-org/mine"' in json.dumps(job)]
    expected = _understood(_told(fetch))["expect"]
    assert (expected["hidden_size"], expected["num_hidden_layers"]) == (5120, 64)
    elsewhere = fetching_job(reference, replace(mine, address="s3://my-models/mine"))
    assert _understood(_told(elsewhere))["folder"] == "s3://my-models/mine"
    assert "--expect" not in _told(fetching_job(reference, base))


def _understood(arguments: list[str]) -> dict[str, Any]:
    return door.commands[arguments[0]].make_context(arguments[0], arguments[1:]).params


def _told(job: Object) -> list[str]:
    (container,) = Pod(job).containers
    arguments: list[str] = container["args"]
    return arguments


def _artifacts(objects: list[Object] | tuple[Object, ...]) -> set[str]:
    return {pod.metadata["annotations"][ARTIFACT_KEY] for pod in pods_of(objects) if pod.kind == "Deployment"}


def test_the_store_understands_every_command_that_pods_give_it(case: Case) -> None:
    store = ["python", "-m", "store"]
    told = [one["args"] for pod in pods_of(case[1]) for one in pod.containers if one.get("command") == store]
    assert told
    for arguments in told:
        _understood(arguments)
