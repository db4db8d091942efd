"""Prices that are fetched, kept, and preferred to the catalogue's.

What is said about dollars before any is spent: `cost`, `run --dry-run`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import ANY

from experiment import Experiment, load
from experiment.catalogue.prices import Price
from experiment.cost import running
from experiment.description import as_json
from experiment.finding import Misuse, Outside, State
from operations import pricing as prices
from operations.cloud.aws import Aws
from operations.preflight import capacity
from tests.cdk8s_charts.objects import objects_of
from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import put
from tests.operations.clients import stubbed
from tests.operations.conftest import Say
from tests.operations.test_verbs import _rendered

TRN2 = "trn2.48xlarge, on demand, us-east-2"


@pytest.fixture
def no_prices() -> tuple[str, ...]:
    """Words that leave the user's own prices out."""
    return "--prices", "/nonexistent/prices.json"


def product(usagetype: str, *usd: str) -> str:
    """One product as the Pricing API writes it: JSON in a string."""
    dimensions = {str(number): {"pricePerUnit": {"USD": amount}} for number, amount in enumerate(usd)}
    terms = {"OnDemand": {"term": {"priceDimensions": dimensions}}}
    return json.dumps({"product": {"attributes": {"usagetype": usagetype}}, "terms": terms})


def test_one_price_is_taken_and_several_or_none_leave_the_catalogue(
    experiment: Experiment,
) -> None:
    client, stub = stubbed("pricing", "us-east-1")
    aws, items = Aws("us-east-1", make_client=lambda _service: client), running(experiment)
    reserved = product("USE2-Reservation:trn2.48xlarge", "1.0")
    answers = {
        0: [product("USE2-BoxUsage:trn2.48xlarge", "40.5", "0.0000"), reserved],
        1: [product("USE2-AmazonEKS-Hours:perCluster", "0.10", "0.60")],
    }

    def fetched(told: dict[int, list[str]]) -> dict[str, Price]:
        for number in range(5):  # nodes of three types, the control plane, the gateway
            asked = {"ServiceCode": ANY, "Filters": ANY}
            stub.add_response("get_products", {"PriceList": told.get(number, [])}, asked)
        return prices.fetch(items, aws, region="us-east-2", today="2026-04-01")

    source = "AWS Price List Query API, us-east-2"
    assert fetched(answers) == {TRN2: Price(item=TRN2, usd_per_hour=40.5, as_of="2026-04-01", source=source)}
    stub.assert_no_pending_responses()
    with pytest.raises(Outside, match="the catalogue's prices stay"):
        fetched({})


def test_fetched_prices_are_preferred_in_their_own_region_only(
    tmp_path: Path, experiment: Experiment
) -> None:
    file = tmp_path / "deep" / "prices.json"
    newer = Price(item=TRN2, usd_per_hour=40.5, as_of="2026-04-01", source=prices.SOURCE)
    prices.write(file, region="us-east-2", prices={TRN2: newer})
    prices.write(file, region="us-west-2", prices={})
    items = running(experiment)
    first, *others = prices.at_newest(items, prices.read(file, region="us-east-2"))
    assert (first.usd_per_hour, tuple(others)) == (40.5, items[1:])
    assert prices.at_newest(items, prices.read(file, region="us-west-2")) == items
    file.write_text("[]")
    with pytest.raises(Misuse, match="is not a file of prices"):
        prices.write(file, region="us-east-2", prices={})
    assert file.read_text() == "[]"


PRICE = '{"us-east-2": {"x": {"item": "x", "usd_per_hour": %s, "as_of": %s, "source": ""}}}'
DAMAGED = {
    "deep": "[" * 100_000,
    "true dollars": PRICE % ("true", '""'),
    "a date that is an object": PRICE % ("1", "{}"),
    "too long": " " * 2**21,
    "cut": "{",
    "negative": PRICE % ("-1", '""'),
    "no table": '{"us-east-2": [1]}',
}


def test_a_damaged_file_of_prices_is_one_line_and_a_pipe_is_not_waited_for(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    for damage, text in DAMAGED.items():
        file.write_text(text)
        code, _, err = say("cost", "--prices", str(file))
        assert (code, err.count("\n")) == (2, 1), damage
        assert err.endswith("remove it and run ./trnspec cost --refresh\n")
    file.unlink()
    os.mkfifo(file)
    code, _, err = say("cost", "--prices", str(file))
    assert (code, "is not a regular file" in err) == (2, True)


def test_cost_is_listed_by_component_with_its_dates(say: Say) -> None:
    code, out, _ = say("cost", "--json", "--hours", "2", "--prices", "/nonexistent/prices.json")
    bill = json.loads(out)
    assert code == 0
    assert bill["running_usd_per_hour"] == pytest.approx(
        sum(item["usd_per_hour"] for item in bill["items"]), abs=0.001
    )
    assert bill["run"]["usd"] == pytest.approx(2 * bill["running_usd_per_hour"], abs=0.01)
    assert all(item["as_of"] and item["source"] for item in bill["items"])
    _, text, _ = say("cost", "--compiled", "--prices", "/nonexistent/prices.json")
    assert "predicted" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_run_that_is_tried_without_aws_tells_the_plan_of_a_new_run_and_why(
    say: Say, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, out, err = say("run", str(ROOT / "experiments/qwen3-32b.yaml"), "--dry-run", "--json")
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
    credentials: None,
    variation: Callable[[Any], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    windows: int | list[int],
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = variation(lambda data: put("arms.1.speculation.num_speculative_tokens", windows)(data))
    shares = tmp_path / "shares.json"
    shares.write_text(json.dumps({"code": [0.5] * 7}))
    written = _rendered(load(file), tmp_path)
    arm = next(arm.name for arm in load(file).arms if arm.name.endswith(("sd-vllm", "k7")))
    checked = as_json(load(file))["first_run"]["usd"]
    run = json.loads(say("run", str(file), "--dry-run", "--json", "--manifests", str(written))[1])
    cost = json.loads(say("cost", str(file), "--json")[1])
    told = say("forecast", str(file), "--acceptance", str(shares), "--arm", arm, "--json")[1]
    assert {run["predicted_usd"], cost["run"]["usd"], json.loads(told)["rental_usd"]} == {checked}


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_run_that_could_not_end_well_is_refused_before_a_node_starts(
    more: tuple[str, ...], say: Say, variation: Callable[[Any], Path], tmp_path: Path
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


def test_a_region_that_is_not_in_the_table_is_taken_its_price_is_unknown_and_ec2_is_asked(
    say: Say, variation: Callable[[Any], Path], account: None
) -> None:
    zones = ["eu-north-1a", "eu-north-1b"]
    file = variation(lambda data: data["cluster"].update(region="eu-north-1", availability_zones=zones))
    experiment = load(file)
    said = as_json(experiment)["unknown_until_run"]
    assert "region eu-north-1: whether EC2 offers trn2.48xlarge there (./trnspec preflight asks)" in said
    price = "trn2.48xlarge, on demand, eu-north-1"
    assert f"price of {price}: every sum counts that of us-east-2, 2025-11-30" in said
    code, out, _ = say("cost", str(file), "--prices", "/nonexistent/prices.json")
    assert code == 0
    assert f"{price}: price unknown; that of us-east-2, 2025-11-30, counts in every sum" in " ".join(
        out.split()
    )
    found = capacity.offered(experiment, Aws("eu-north-1"))
    assert (found.state, found.why) == (State.FINDING, "trn2.48xlarge is not offered in eu-north-1")


def test_cost_says_that_what_is_reserved_is_paid_for_otherwise(
    say: Say, variation: Callable[[Any], Path]
) -> None:
    block = {
        "kind": "reservation",
        "reservation_id": "cr-0123456789abcdef0",
        "availability_zone": "us-east-2b",
    }
    file = variation(lambda data: data["cluster"].update(capacity=block))
    code, out, _ = say("cost", str(file), "--prices", "/nonexistent/prices.json")
    assert code == 0
    assert "cluster.capacity is a reservation: billed for all of its time, whether nodes run or not" in out


def test_interface_endpoints_are_priced_for_each_zone(
    say: Say, variation: Callable[[Any], Path], no_prices: tuple[str, ...]
) -> None:
    """Eleven services in two zones, at a cent each."""
    file = variation(lambda data: data["cluster"].update(network={"interface_endpoints": True}))
    without, with_them = (
        json.loads(say("cost", *words, "--json", *no_prices)[1]) for words in ((), (str(file),))
    )
    assert with_them["idle_usd_per_hour"] - without["idle_usd_per_hour"] == pytest.approx(0.22)
    (line,) = [one for one in with_them["items"] if "interface endpoint" in one["item"]]
    assert (line["units"], line["usd_per_hour"]) == (22, 0.22)


def test_a_load_balancer_is_priced_where_there_is_one(
    say: Say, variation: Callable[[Any], Path], no_prices: tuple[str, ...]
) -> None:
    serve = {
        "arm": "qwen-sd-vllm",
        "certificate_arn": "arn:aws:acm:us-east-2:111122223333:certificate/0a1b2c3d",
        "client_cidrs": ["10.0.0.0/8"],
    }
    file = variation(
        lambda data: data.update(serve=serve) or data["serving"].update(api_key_secret="vllm-api-key")
    )
    for words, there in (((str(file),), True), ((), False)):
        assert ("Network Load Balancer" in say("cost", *words, *no_prices, "--json")[1]) is there


def test_every_part_of_the_price_says_where_it_is_from_and_usage_that_it_is_an_estimate(
    say: Say, no_prices: tuple[str, ...]
) -> None:
    bill = json.loads(say("cost", "--json", *no_prices)[1])
    usage = [one for one in bill["items"] if one["item"].startswith("usage")]
    assert len(usage) == 3
    assert {one["as_of"] for one in usage} == {"an estimate"}
    assert 0.63 < bill["idle_usd_per_hour"] < 0.70


def test_the_quality_questions_are_predicted_as_they_are_asked(
    say: Say, variation: Callable[[Any], Path], no_prices: tuple[str, ...]
) -> None:
    """From what the reviewed manifest asks of each arm, one after the other, at 45 ms a token."""
    (check,) = [item for item in objects_of(REFERENCE) if item["metadata"]["name"] == "qwen-lmeval"]
    pod = check["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    hours = 0.0
    for container in pod["initContainers"]:
        given = dict(pairwise(container["args"]))
        at_once = json.loads(given["--model_args"])["num_concurrent"]
        tokens = json.loads(given["--gen_kwargs"])["max_gen_toks"]
        hours += math.ceil(int(given["--limit"]) / at_once) * tokens * 0.045 / 3600
    without = variation(lambda data: data["benchmark"].pop("lm_eval"))
    asked, silent = (
        json.loads(say("cost", *words, "--json", *no_prices)[1])["run"] for words in ((), (str(without),))
    )
    (part,) = [one for one in asked["parts"] if one["step"] == "quality"]
    assert part["hours"] == pytest.approx(hours) == pytest.approx(0.64)
    assert asked["trn2_hours"] - silent["trn2_hours"] == pytest.approx(hours, abs=0.01)
    assert 23 < asked["usd"] - silent["usd"] < 24
