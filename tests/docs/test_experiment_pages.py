"""The JSON Schema of an experiment file takes what the model takes; it, the reference and the gallery are as if made now."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import REFERENCE
from tests.docs.experiment_pages import EXPERIMENTS, SCHEMA, WRITTEN, schema, sections
from tests.experiment.edits import BLOCK, DFLASH, EAGLE, SMALL, Edit, put, remove
from trnspec.experiment import load
from trnspec.experiment.description import as_json
from trnspec.experiment.header import PRICES, read_header
from trnspec.experiment.refusals import form_problems

PATHS = sorted(EXPERIMENTS.glob("*.yaml"))
FIRST_LINE = "# yaml-language-server: $schema=./experiment.schema.json\n"
SWEEP = "arms.1.speculation"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


DATA = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))


def _varied(edit: Edit) -> Any:
    data = copy.deepcopy(DATA)
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


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_experiment_names_the_schema_is_taken_and_its_header_says_what_is_predicted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(FIRST_LINE)
    VALIDATOR.validate(yaml.safe_load(text))
    header, experiment = read_header(path), load(path)
    assert header
    found = as_json(experiment)
    assert header.hardware == f"{found['nodes']} x {experiment.instance.name}"
    assert int(header.hours) == round(found["first_run"]["trn2_hours"])
    assert header.price == next(sign for sign, limit in PRICES.items() if found["first_run"]["usd"] < limit)


@pytest.mark.parametrize(
    "edit",
    [
        *(BLOCK, DFLASH, EAGLE, SMALL),
        put(f"{SWEEP}.num_speculative_tokens", [3, 5, 7]),
        put(f"{SWEEP}.draft", [{"model": "Qwen/Qwen3-0.6B"}, {"model": "Qwen/Qwen3-1.7B"}]),
        put("arms.1.engine", {"fused_qkv": True, "token_generation_buckets": [256, {"a": None}]}),
        put("benchmark.slo", {"ttft_s": 0.5, "tpot_s": 1}),
        put("serve", {"arm": "qwen-vllm", "replicas": 2}),
        put("prompts", {"file": "mine.jsonl"}),
    ],
)
def test_what_the_model_takes_the_schema_takes(edit: Edit) -> None:
    data = _varied(edit)
    assert not form_problems(data)
    VALIDATOR.validate(data)


@pytest.mark.parametrize(
    "edit",
    [
        put("extra", 1),
        put("arms.1.name", ["a", "b"]),
        put(f"{SWEEP}.num_speculative_tokens", [7, "9"]),
        put("prompts.classes.code", [1]),
        put("cluster.availability_zones", ["us-east-2a"]),
        put("cluster.capacity", {"kind": "savings-plan"}),
        put("cluster.network", {"vpc": "vpc-0123456789abcdef0", "private_subnets": {"us-east-2a": "a"}}),
        put("serve", {"arm": "qwen-vllm", "replicas": 257}),
        *map(remove, ("version", "name", "target.model", "arms", "arms.0.name", "prompts", f"{SWEEP}.mode")),
    ],
)
def test_what_the_model_refuses_the_schema_refuses(edit: Edit) -> None:
    data = _varied(edit)
    assert form_problems(data)
    assert not VALIDATOR.is_valid(data)


VALUES: tuple[Any, ...] = (None, True, -1, 0, 7, 2.5, 10**6, "", "x", "90m", [], [0], ["x"], {}, {"x": 1})
CHOSEN = {"runtime", "arms.1.runtime", "arms.1.speculation.mode", "cluster.instance"}
"""The model takes any text there; which ones the catalogue knows is said by the schema, and by the checks."""


@pytest.mark.slow
def test_model_and_schema_judge_alike_whatever_stands_at_a_key() -> None:
    otherwise, tried = [], 0
    for section, content in sections(schema(), schema()["$defs"]):
        for key in content["properties"]:
            path = ".".join(filter(None, (section.replace("[]", ".1"), key)))
            for value in VALUES:
                data = _varied(put(path, value))
                left_to_the_checks = path in CHOSEN and isinstance(value, str)
                if VALIDATOR.is_valid(data) != (not form_problems(data) and not left_to_the_checks):
                    otherwise.append((path, value))
                tried += 1
    assert otherwise == [("serving.logical_nc_config", True)], "which the model reads as 1"
    assert tried > 1200
