"""What is said about dollars before any is spent: `cost`, `run --dry-run`, `forecast`, `check`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from core.findings import State
from experiment import load
from experiment.description import as_json
from operations.cloud.aws import Aws
from operations.preflight.checklist import offered as where_offered
from tests.cdk8s_charts.objects import objects_of
from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import put
from tests.operations.conftest import Say
from tests.operations.test_verbs import _rendered

Variation = Callable[[Any], Path]
Bill = Callable[..., dict[str, Any]]


@pytest.fixture
def bill(say: Say) -> Bill:
    """What `cost --json` says."""

    def of(*words: object) -> dict[str, Any]:
        code, out, _ = say("cost", *map(str, words), "--json")
        assert code == 0
        found: dict[str, Any] = json.loads(out)
        return found

    return of


def test_cost_is_listed_by_component_each_with_its_date_and_source(say: Say, bill: Bill) -> None:
    found = bill("--hours", 2)
    total = sum(one["usd_per_hour"] for one in found["items"])
    assert found["running_usd_per_hour"] == pytest.approx(total, abs=0.001)
    assert found["run"]["usd"] == pytest.approx(2 * found["running_usd_per_hour"], abs=0.01)
    assert all(one["as_of"] and one["source"] for one in found["items"])
    usage = [one["as_of"] for one in found["items"] if one["item"].startswith("usage")]
    assert usage == ["an estimate"] * 3
    assert 0.63 < found["idle_usd_per_hour"] < 0.70
    steps = [[one["step"] for one in bill(*words)["run"]["parts"]] for words in ((), ("--compiled",))]
    assert ["compile" in one for one in steps] == [True, False]
    text = say("cost", "--compiled")[1]
    assert "predicted" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_without_aws_shows_the_plan_of_a_new_run_and_the_reason(
    say: Say, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, out, err = say("run", str(REFERENCE), "--dry-run", "--json")
    plan = json.loads(out)
    assert code == 3
    assert (plan["asked_aws"], plan["resumes"], plan["to_compile"]) == (False, None, 2)
    assert plan["most_usd"] > plan["predicted_usd"] > 0
    assert "no AWS credentials on this machine" in err
    assert err.endswith("the plan assumes a new run that compiles every arm\n")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("windows", [7, [3, 5, 7]], ids=["one round", "three rounds"])
def test_every_verb_names_one_price_of_a_run(
    say: Say,
    bill: Bill,
    credentials: None,
    variation: Variation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    windows: int | list[int],
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = variation(lambda data: put("arms.1.speculation.num_speculative_tokens", windows)(data))
    shares = tmp_path / "shares.json"
    shares.write_text(json.dumps({"code": [0.5] * 7}))
    written = _rendered(load(file), tmp_path)
    arm = next(arm.name for arm in load(file).arms if arm.name.endswith(("sd-vllm", "k7")))
    checked = as_json(load(file))["first_run"]["usd"]
    run = json.loads(say("run", str(file), "--dry-run", "--json", "--manifests", str(written))[1])
    forecast = json.loads(say("forecast", str(file), "--acceptance", str(shares), "--arm", arm, "--json")[1])
    assert {run["predicted_usd"], bill(file)["run"]["usd"], forecast["rental_usd"]} == {checked}


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_run_that_could_not_end_well_is_refused_before_a_node_starts(
    more: tuple[str, ...], say: Say, variation: Variation, tmp_path: Path
) -> None:
    serving = variation(lambda data: data.update(serve={"arm": "qwen-sd-vllm"}))
    service = "qwen-sd-vllm is a service (serve), and a run ends with every arm and node at 0; remove the"
    notes, reference = tmp_path / "notes.txt", str(ROOT / "experiments/qwen3-32b.yaml")
    notes.write_text("mine")
    no_folder = "is not a folder; choose another folder"
    for words, why in (
        ((str(serving),), service),
        ((reference, "--out", str(notes)), no_folder),
        ((reference, "--out", str(notes / "new/results")), no_folder),
    ):
        code, out, err = say("run", *words, *more)
        assert (code, out, why in err, len(err.splitlines())) == (2, "", True, 1), err
    assert notes.read_text() == "mine"


def test_in_a_region_that_is_not_in_the_table_the_price_is_unknown_and_ec2_is_asked(
    say: Say, variation: Variation, account: None
) -> None:
    zones = ["eu-north-1a", "eu-north-1b"]
    file = variation(lambda data: data["cluster"].update(region="eu-north-1", availability_zones=zones))
    experiment = load(file)
    unknown = as_json(experiment)["unknown_until_run"]
    assert "region eu-north-1: whether EC2 offers trn2.48xlarge there (./trnspec preflight asks)" in unknown
    price = "trn2.48xlarge, on demand, eu-north-1"
    assert f"price of {price}: every sum counts that of us-east-2, 2025-11-30" in unknown
    code, out, _ = say("cost", str(file))
    line = (
        f"{price}: price unknown; that of us-east-2, 2025-11-30, counts in every sum; the region's own is on"
    )
    assert (code, line in " ".join(out.split())) == (0, True)
    offered = where_offered(experiment, Aws("eu-north-1"))
    assert (offered.state, offered.why) == (State.FINDING, "trn2.48xlarge is not offered in eu-north-1")


def test_a_reservation_is_billed_otherwise_than_the_list_says(say: Say, variation: Variation) -> None:
    block = {"kind": "reservation", "reservation_id": "cr-0123456789abcdef0"}
    block["availability_zone"] = "us-east-2b"
    code, out, _ = say("cost", str(variation(lambda data: data["cluster"].update(capacity=block))))
    billed = "cluster.capacity is a reservation: billed for all of its time, whether nodes run or not"
    assert (code, billed in out) == (0, True)


def test_a_load_balancer_is_priced_where_there_is_one(bill: Bill, variation: Variation) -> None:
    serve = {"arm": "qwen-sd-vllm", "client_cidrs": ["10.0.0.0/8"]}
    serve["certificate_arn"] = "arn:aws:acm:us-east-2:111122223333:certificate/0a1b2c3d"

    def edit(data: dict[str, Any]) -> None:
        data["serving"]["api_key_secret"] = "vllm-api-key"
        data["serve"] = serve

    priced = [one for one in bill(variation(edit))["items"] if "Network Load Balancer" in one["item"]]
    assert [(one["units"], one["usd_per_hour"]) for one in priced] == [(1, 0.0225)]
    assert not any("Network Load Balancer" in one["item"] for one in bill()["items"])


def test_the_quality_questions_are_predicted_as_they_are_asked(bill: Bill, variation: Variation) -> None:
    """From what the reviewed manifest asks of each arm, one after the other, at 45 ms a token."""
    (check,) = [item for item in objects_of(REFERENCE) if item["metadata"]["name"] == "qwen-lmeval"]
    pod = check["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    hours = 0.0
    for container in pod["initContainers"]:
        given = dict(pairwise(container["args"]))
        at_once = json.loads(given["--model_args"])["num_concurrent"]
        tokens = json.loads(given["--gen_kwargs"])["max_gen_toks"]
        hours += math.ceil(int(given["--limit"]) / at_once) * tokens * 0.045 / 3600
    asked = bill()["run"]
    silent = bill(variation(lambda data: data["benchmark"].pop("lm_eval")))["run"]
    (part,) = [one for one in asked["parts"] if one["step"] == "quality"]
    assert part["hours"] == pytest.approx(hours) == pytest.approx(0.64)
    assert asked["trn2_hours"] - silent["trn2_hours"] == pytest.approx(hours, abs=0.01)
    assert 23 < asked["usd"] - silent["usd"] < 24
