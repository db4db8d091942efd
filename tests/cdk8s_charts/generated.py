"""Experiments that nobody wrote: choices drawn at random, kept where the core accepts them, rendered once a session."""

from __future__ import annotations

import copy
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from cdk8s_charts.render import render
from experiment import Experiment, InvalidExperiment, load
from tests.cdk8s_charts.objects import Object
from tests.conftest import REFERENCE
from tests.experiment.edits import put

CHOICES: dict[str, list[Any]] = {
    "serving.devices": [1, 4, 8, 16],
    "serving.logical_nc_config": [1, 2],
    "serving.max_num_seqs": [1, 4, [4, 16]],
    "serving.max_model_len": [1024, 4096],
    "serving.allocation": ["dra", "device-plugin"],
    "serving.artifact_source": ["mount", "scratch"],
    "serving.pod_security": ["image-defaults", "baseline", "restricted"],
    "serving.api_key_secret": [None, "vllm-key"],
    "target.model": ["Qwen/Qwen3-32B", "Qwen/Qwen3-8B"],
    "arms.1.speculation.num_speculative_tokens": [7, [3, 5, 7]],
    "benchmark.lm_eval": [None, {"limit": 100}],
    "benchmark.endpoint": ["chat", "completions"],
    "cluster.max_nodes": [1, 2, 3],
    "cluster.kubernetes": ["1.35", "1.36"],
    "serve": [None, {"arm": "qwen-sd-vllm", "replicas": 1}, {"arm": "qwen-sd-vllm", "max_replicas": 2}],
}
SMALL = {"cluster.instance": "trn2.3xlarge", "cluster.region": "ap-southeast-4"}
ZONES = {"us-east-2": ["us-east-2a", "us-east-2b"], "ap-southeast-4": ["ap-southeast-4a", "ap-southeast-4b"]}
WANTED, MOST_TRIES = 16, 400


@cache
def generated() -> tuple[tuple[Experiment, tuple[Object, ...]], ...]:
    """So many experiments that the core accepts, with their objects. Every run draws the same ones."""
    chance, found = random.Random(20261122), list[Experiment]()
    reference = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    for _ in range(MOST_TRIES):
        data = copy.deepcopy(reference)
        del data["serving"]["tensor_parallel"]
        small = chance.random() < 0.3
        for path, values in CHOICES.items():
            put(path, chance.choice(values))(data)
        for path, value in SMALL.items() if small else ():
            put(path, value)(data)
        put("cluster.availability_zones", ZONES[data["cluster"]["region"]])(data)
        if small:
            put("serving.devices", 1)(data)
        if experiment := _accepted(data):
            found.append(experiment)
        if len(found) == WANTED:
            break
    return tuple((one, tuple(item for file in render(one) for item in file.objects)) for one in found)


def _accepted(data: dict[str, Any]) -> Experiment | None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "generated.yaml")
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        try:
            return load(file)
        except InvalidExperiment:
            return None
