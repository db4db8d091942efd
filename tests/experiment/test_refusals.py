"""Every rule that refuses an experiment: one line that names the place, the value, the reason and the remedy."""

from __future__ import annotations

import ast
import copy
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.experiment.edits import (
    EXPECT,
    EXPECT_DRAFTED,
    NATIVE,
    SMALL,
    SPECULATION,
    VPC,
    Edit,
    Variation,
    both,
    combined,
    put,
)
from trnspec.experiment import InvalidExperiment, load
from trnspec.experiment.arm_rules import max_name_length
from trnspec.experiment.catalogue.instances import INSTANCES, ZONES
from trnspec.experiment.model import FORMS, ExperimentFile
from trnspec.experiment.naming import bucket

TABLE = Path(__file__).with_name("refusals.txt")
"""Name | what passes, beyond the reference | the mistake in it | where it is said | words of the line. Edits as in
`combined`; S is the speculation of the second arm."""
K = f"{SPECULATION}.num_speculative_tokens"
CIDRS = "cluster.admin_cidrs"
LONGEST = "prompts.classes.json.3"


def _plan_beyond_a_config_map(data: dict[str, Any]) -> None:
    data["prompts"]["classes"].update(json=["x" * 30_000 + str(n) for n in range(30)])
    data["serving"].update(max_model_len=40_000)
    data["benchmark"].update(requests=32)


HERE: dict[str, tuple[Edit, str, str]] = {
    "a plan beyond a ConfigMap": (_plan_beyond_a_config_map, "prompts", "holds 1 MiB"),
    "prompt too long": (
        put(LONGEST, "x" * 400),
        "prompts.classes.json",
        "up to 400 tokens (its UTF-8 bytes) of the prompt + 48 for nonce and template + 600 to generate + 7 for "
        "the last step of qwen-sd-vllm, which fails beyond the context = 1055",
    ),
    "prompt length in bytes, not letters": (
        put(LONGEST, "é" * 200),
        "prompts.classes.json",
        "up to 400 tokens (its UTF-8 bytes)",
    ),
    "an absurd number": (put("serving.max_num_seqs", 10**400), "serving.max_num_seqs", "less than or equal"),
    "endless digits": (
        put("cluster.kubernetes", "1." + "9" * 5000),
        "cluster.kubernetes",
        "is not a valid Kubernetes",
    ),
    "too many": (put(CIDRS, [f"8.8.{n}.0/24" for n in range(41)]), CIDRS, "41 networks, and EKS takes 40"),
}


def _rows() -> dict[str, tuple[Edit, Edit, str, str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {
        name: (combined(good), combined(mistake), path.replace("S.", "arms[1].speculation."), words)
        for name, good, mistake, path, words in rows
    } | {name: (both(), edit, path, words) for name, (edit, path, words) in HERE.items()}


REFUSED = _rows()


@pytest.fixture(scope="module")
def passed() -> set[str]:
    """Texts of twins that were loaded: most mistakes are in the reference."""
    return set()


@pytest.mark.parametrize("name", REFUSED)
def test_the_twin_passes_and_the_mistake_is_one_line(
    name: str, variation: Variation, passed: set[str]
) -> None:
    good, mistake, path, words = REFUSED[name]
    twin = variation(good)
    if twin.read_text() not in passed:
        load(twin)
        passed.add(twin.read_text())
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(good, mistake)))
    assert [problem.where for problem in caught.value.findings] == [path], caught.value.lines
    (line,) = caught.value.lines
    assert f": {path}" in line
    assert words in line
    assert "; " in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("edit", "most", "room"),
    [(both(), 369, 7), (put(K, 2), 374, 2), (put(K, [2, 7]), 369, 7), (NATIVE, 376, 0)],
    ids=["k of the last step", "a smaller window", "the longest of a sweep", "a runtime without that limit"],
)
def test_a_prompt_may_fill_the_context_up_to_the_last_step(
    edit: Edit, most: int, room: int, variation: Variation
) -> None:
    assert load(variation(both(edit, put(LONGEST, "x" * most)))).arms[-1].step_room == room
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(edit, put(LONGEST, "x" * (most + 1)))))
    (line,) = caught.value.lines
    assert "prompts.classes.json" in line
    assert "above max_model_len 1024" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1\n- 2", "not a mapping"),
        ("version: 1\n2: 3", ":2: 2: 2 is a key that is not text; put it in quotes"),
        ("version: 1\nname: x\nname: y", ":3: name: the key appears twice, on lines 2 and 3; keep one"),
        ("a: [", "is not valid YAML at line"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "broken.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidExperiment, match=words):
        load(path)


FORM: dict[str, Any] = {
    "serving.max_num_seq": 4,
    "benchmark.requests": "four",
    "arms.1.speculation.num_speculative_tokens": "seven",
    "cluster.max_nodes": {},
}
VALUES: dict[str, Any] = {
    "serving.devices": 6,
    "arms.1.speculation.num_speculative_tokens": 1,
    "cluster.kubernetes": "1.30",
    "benchmark.temperature": 0.5,
}
NAMES: dict[str, Any] = {
    "runtime": "mine",
    "target.model": "mine",
    "arms.1.speculation.mode": "mine",
    "cluster.instance": "mine",
    "cluster.kubernetes": "1.30",
}


@pytest.mark.parametrize("mistakes", [FORM, VALUES, NAMES, FORM | {"cluster.kubernetes": "1.30"}])
def test_all_problems_of_one_stage_are_reported_at_once_in_the_order_of_the_file(
    mistakes: dict[str, Any], variation: Variation
) -> None:
    path = variation(both(*(put(where, value) for where, value in mistakes.items())))
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    stage = FORM if FORM.keys() <= mistakes.keys() else mistakes
    places = [problem.where for problem in caught.value.findings]
    assert sorted(places) == sorted(where.replace("arms.1", "arms[1]") for where in stage)
    lines = path.read_text().splitlines()
    numbers = [int(line.removeprefix(f"{path}:").partition(":")[0]) for line in caught.value.lines]
    assert numbers == sorted(numbers)
    keys = [re.split(r"\W", place)[-1] for place in places]
    assert all(f"{key}:" in lines[number - 1] for key, number in zip(keys, numbers, strict=True))


def test_problems_of_one_value_come_once_each_in_its_order(variation: Variation) -> None:
    unknown = ["nine", "two", "seven", "one", "five", "eight"]
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(EXPECT, put("expect.figures.0.classes", [*unknown, "code", "two"]))))
    assert [problem.value for problem in caught.value.findings] == unknown


def _places(data: Any, path: str = "") -> Iterator[str]:
    inner: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield f"{path}{key}"
        yield from _places(value, f"{path}{key}.")


BROKEN: tuple[Any, ...] = (
    *(None, True, -1, 2.5, "", "x", [], ["x"], {}, {"x": 1}, 10**30, math.nan),
    *({1: 2}, {None: 1, 2.5: 2, True: 3}, [{1: {2: 3}}], {"x": {1: 2}}),
)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_broken_ends_in_a_refusal_and_in_nothing_else(variation: Variation, seed: int) -> None:
    """Two values anywhere in a file with all its sections: no rule fails at one that it cannot read."""
    random, whole = Random(seed), both(VPC, EXPECT_DRAFTED)
    places = [*_places(yaml.safe_load(variation(whole).read_text(encoding="utf-8")))]
    for _ in range(60):
        one, other = sorted(random.sample(places, 2), reverse=True)  # an inner value before what it is in
        path = variation(both(whole, put(one, random.choice(BROKEN)), put(other, random.choice(BROKEN))))
        with suppress(InvalidExperiment):
            load(path)


EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_wrong_type_at_any_key_is_a_finding(path: Path, tmp_path: Path) -> None:
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    written["prompts"] = {"classes": {"a": [f"What is {n}?" for n in range(8)]}}
    broken, taken = tmp_path / path.name, set()
    for place in _places(written):
        for wrong in ([["x"]], {1: 2}):
            data = copy.deepcopy(written)
            put(place, wrong)(data)
            broken.write_text(yaml.dump(data, Dumper=yaml.CSafeDumper), encoding="utf-8")
            with suppress(InvalidExperiment):
                load(broken)
                taken |= {place} if ".engine." not in place or 1 in wrong else set()
    assert taken == set(), "only a key of an engine takes a list of lists"


@pytest.mark.parametrize("key", ["1", "~", "2.5", "on", "2026-11-28"])
@pytest.mark.parametrize("place", ["", "serving", "arms.1", "arms.1.engine", "prompts.classes"])
def test_a_key_that_is_not_text_is_one_refusal(place: str, key: str, variation: Variation) -> None:
    path = variation(put(f"{place}.KEY".removeprefix("."), 3))
    text = path.read_text(encoding="utf-8").replace("KEY:", f"{key}:")
    path.write_text(text, encoding="utf-8")
    (number,) = (n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(f"{key}: 3"))
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    (line,) = caught.value.lines
    assert place.replace(".1", "[1]") in line
    assert "is a key that is not text; put it in quotes" in line
    assert key in ("~", "on") or line.startswith(f"{path}:{number}: ")


def test_several_networks_a_whole_8_and_none_are_taken(variation: Variation) -> None:
    for cidrs in (["8.8.8.8/32", "9.9.9.0/24"], ["9.0.0.0/8"], []):
        assert load(variation(put(CIDRS, cidrs))).cluster.admin_cidrs == tuple(cidrs)


@pytest.mark.parametrize("region", ZONES)
def test_the_longest_name_gives_buckets_that_s3_takes(region: str, variation: Variation) -> None:
    edit = both(
        put("name", "x" * max_name_length(region)),
        put("cluster.region", region),
        put("cluster.availability_zones", list(ZONES[region][:2])),
    )
    if region not in INSTANCES["trn2.48xlarge"].zones:
        edit = both(SMALL, edit, put("cluster.availability_zones", list(ZONES[region][1:][::-1])))
    named = load(variation(edit))
    assert all(len(bucket(named, kind, "1" * 12)) <= 63 for kind in ("checkpoints", "artifacts", "results"))
    with pytest.raises(InvalidExperiment, match="bucket names made from it would pass 63"):
        load(variation(both(edit, put("name", "x" * (max_name_length(region) + 1)))))


def test_every_pattern_of_the_schema_is_explained() -> None:
    schema = json.dumps(ExperimentFile.model_json_schema())
    found = re.findall(r'"pattern(?:Properties)?": (?:\{)?("(?:[^"\\]|\\.)*")', schema)
    patterns = {json.loads(one) for one in found}
    assert patterns == FORMS.keys()


def test_every_sentence_of_the_table_is_said_by_some_rule_and_no_rule_says_another() -> None:
    known = yaml.safe_load((ROOT / "src/trnspec/experiment" / "refusals.yaml").read_text(encoding="utf-8"))
    modules = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in (ROOT / "src/trnspec/experiment").rglob("*.py")
    ]
    nodes = [node for module in modules for node in ast.walk(module)]
    literals = {node.value for node in nodes if isinstance(node, ast.Constant)}
    called = [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "refused"]
    named = {node.args[0].value for node in called if isinstance(node.args[0], ast.Constant)}
    made = {
        "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in name.values
        )
        for node in called
        if isinstance(name := node.args[0], ast.JoinedStr)
    }
    assert named <= known.keys()
    said = {name for name in known if name in literals or any(re.fullmatch(one, name) for one in made)}
    assert said == known.keys()
