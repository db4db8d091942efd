"""The JSON Schema of an experiment file takes what the model takes; it, the reference and the gallery are as if made now."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from experiment.parsing import read
from tests.conftest import REFERENCE, ROOT
from tests.docs.experiment_pages import SCHEMA, WRITTEN, question, schema
from tests.experiment.edits import BALANCED, BLOCK, DFLASH, EAGLE, MEDUSA, SMALL, Edit, put, remove

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
FIRST_LINE = "# yaml-language-server: $schema=./experiment.schema.json\n"
SWEEP = "arms.1.speculation"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def _varied(edit: Edit) -> Any:
    data = copy.deepcopy(yaml.safe_load(REFERENCE.read_text(encoding="utf-8")))
    edit(data)
    return data


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_what_is_generated_is_as_if_made_now(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert WRITTEN[path](text) == text, "run: make docs"


def test_the_schema_is_one_and_explains_every_key() -> None:
    VALIDATOR.check_schema(schema())
    sections = [schema(), *schema()["$defs"].values()]
    keys = [key for section in sections for key in section.get("properties", {}).values()]
    assert len(keys) > 60
    assert all(key["description"].strip() for key in keys)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.name)
def test_every_experiment_names_the_schema_asks_a_question_and_is_taken(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(FIRST_LINE)
    assert question(path).endswith("?")
    VALIDATOR.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "edit",
    [
        *(BALANCED, BLOCK, DFLASH, EAGLE, MEDUSA, SMALL),
        put(f"{SWEEP}.num_speculative_tokens", [3, 5, 7]),
        put(f"{SWEEP}.draft", [{"model": "Qwen/Qwen3-0.6B"}, {"model": "Qwen/Qwen3-1.7B"}]),
        put("arms.1.engine", {"fused_qkv": True, "token_generation_buckets": [256, {"a": None}]}),
        put("benchmark.slo", {"ttft_s": 0.5, "tpot_s": 1}),
        put("benchmark.slo", None),
        put("serve", {"arm": "qwen-vllm", "max_replicas": None}),
        put("prompts", {"file": "mine.jsonl"}),
    ],
)
def test_what_the_model_takes_the_schema_takes(edit: Edit) -> None:
    data = _varied(edit)
    assert not read(data).problems
    VALIDATOR.validate(data)


@pytest.mark.parametrize(
    "edit",
    [
        put("version", "1"),
        put("extra", 1),
        put("target", "Qwen/Qwen3-32B"),
        put("target.revision", "main"),
        put("arms.0", "qwen-vllm"),
        put("arms.1.name", ["a", "b"]),
        put(f"{SWEEP}.num_speculative_tokens", "7"),
        put(f"{SWEEP}.num_speculative_tokens", []),
        put(f"{SWEEP}.num_speculative_tokens", [7, "9"]),
        put(f"{SWEEP}.num_speculative_tokens", True),
        put(f"{SWEEP}.draft", "Qwen/Qwen3-1.7B"),
        put("serving.devices", 17),
        put("serving.logical_nc_config", 3),
        put("prompts.classes.code", [1]),
        put("benchmark.thinking", "no"),
        put("benchmark.temperature", "0"),
        put("benchmark.concurrency", []),
        put("benchmark.concurrency", [0]),
        put("benchmark.slo", {"tpot_s": 0}),
        put("cluster.availability_zones", ["us-east-2a"]),
        put("cluster.capacity", {"kind": "spot"}),
        put("cluster.provided", ["argo"]),
        put("cluster.network", {"vpc": "vpc-0123456789abcdef0", "private_subnets": {"us-east-2a": "a"}}),
        put("serve", {"replicas": 2}),
        put("serve", {"arm": "qwen-vllm", "max_replicas": 257}),
        *map(remove, ("version", "name", "target.model", "arms", "arms.0.name", "prompts", f"{SWEEP}.mode")),
    ],
)
def test_what_the_model_refuses_the_schema_refuses(edit: Edit) -> None:
    """A mistake of each form that a key may have."""
    data = _varied(edit)
    assert read(data).problems
    assert not VALIDATOR.is_valid(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [("runtime", "nxdi-vllm-9.9"), (f"{SWEEP}.mode", "lookahead"), ("cluster.instance", "p5.48xlarge")],
)
def test_the_schema_knows_the_names_that_the_catalogue_knows(path: str, value: str) -> None:
    assert not VALIDATOR.is_valid(_varied(put(path, value)))
