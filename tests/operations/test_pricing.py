"""Prices that are fetched, kept, and preferred to the catalogue's.

What is said about dollars before any is spent: `cost`, `run --dry-run`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from experiment import Experiment, load
from experiment.catalogue.prices import Price
from experiment.cost import running
from experiment.description import as_json
from experiment.finding import Misuse, Outside
from operations import pricing as prices
from operations.cloud.aws import Aws
from tests.conftest import ROOT
from tests.experiment.edits import put
from tests.operations.clients import stubbed
from tests.operations.conftest import Say
from tests.operations.test_verbs import _rendered

TRN2 = "trn2.48xlarge, on demand, us-east-2"


def product(usagetype: str, *usd: str) -> str:
    """One product as the Pricing API writes it: JSON in a string."""
    dimensions = {str(number): {"pricePerUnit": {"USD": amount}} for number, amount in enumerate(usd)}
    terms = {"OnDemand": {"term": {"priceDimensions": dimensions}}}
    return json.dumps({"product": {"attributes": {"usagetype": usagetype}}, "terms": terms})


def pricing(answers: list[list[str]]) -> tuple[Aws, Stubber]:
    """A Pricing API with one answer an item; the Stubber checks the shape of each question."""
    client, stub = stubbed("pricing", "us-east-1")
    for answer in answers:
        asked = {"ServiceCode": ANY, "Filters": ANY}
        stub.add_response("get_products", {"PriceList": answer}, asked)
    return Aws("us-east-1", make_client=lambda _service: client), stub


def test_one_price_is_taken_and_several_or_none_leave_the_catalogue(experiment: Experiment) -> None:
    items = running(experiment)
    answers: list[list[str]] = [[] for _ in items]
    answers[0] = [
        product("USE2-BoxUsage:trn2.48xlarge", "40.5", "0.0000"),
        product("USE2-Reservation:trn2.48xlarge", "1.0"),
    ]
    answers[1] = [product("USE2-AmazonEKS-Hours:perCluster", "0.10", "0.60")]
    aws, stub = pricing(answers)
    found = prices.fetch(items, aws, region="us-east-2", today="2026-04-01")
    assert found == {
        TRN2: Price(
            item=TRN2, usd_per_hour=40.5, as_of="2026-04-01", source="AWS Price List Query API, us-east-2"
        )
    }
    stub.assert_no_pending_responses()


def test_a_region_without_any_price_is_told(experiment: Experiment) -> None:
    items = running(experiment)
    aws, _ = pricing([[] for _ in items])
    with pytest.raises(Outside, match="the catalogue's prices stay"):
        prices.fetch(items, aws, region="us-east-2", today="2026-04-01")


def test_what_was_fetched_is_preferred_in_its_own_region_only(tmp_path: Path, experiment: Experiment) -> None:
    file = tmp_path / "deep" / "prices.json"
    newer = Price(item=TRN2, usd_per_hour=40.5, as_of="2026-04-01", source=prices.SOURCE)
    prices.write(file, region="us-east-2", prices={TRN2: newer})
    prices.write(file, region="us-west-2", prices={})
    items = running(experiment)
    first, *others = prices.at_newest(items, prices.read(file, region="us-east-2"))
    assert (first.usd_per_hour, tuple(others)) == (40.5, items[1:])
    assert prices.at_newest(items, prices.read(file, region="us-west-2")) == items


def test_another_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text("[]")
    with pytest.raises(Misuse, match="is not a file of prices"):
        prices.write(file, region="us-east-2", prices={})
    assert file.read_text() == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"us-east-2": {"x": {"item": "x", "usd_per_hour": true, "as_of": "", "source": ""}}}',
        '{"us-east-2": {"x": {"item": "x", "usd_per_hour": 1, "as_of": {}, "source": ""}}}',
        " " * 2**21,
        "{",
        '{"us-east-2": {"x": {"item": "x", "usd_per_hour": -1, "as_of": "", "source": ""}}}',
        '{"us-east-2": [1]}',
    ],
    ids=["deep", "true dollars", "a date that is an object", "too long", "cut", "negative", "no table"],
)
def test_a_damaged_file_of_prices_is_one_line(text: str, say: Say, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    code, _, err = say("cost", "--prices", str(file))
    assert (code, err.count("\n")) == (2, 1)
    assert err.endswith("remove it and run ./trnspec cost --refresh\n")


def test_a_pipe_of_prices_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "prices.json")
    with pytest.raises(Misuse, match="is not a regular file"):
        prices.read(tmp_path / "prices.json", region="us-east-2")


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
    assert err.endswith("the plan is that of a new run that compiles every arm\n")
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


def test_run_does_not_take_a_service_down(say: Say, variation: Callable[[Any], Path]) -> None:
    file = variation(lambda data: data.update(serve={"arm": "qwen-sd-vllm"}))
    for more in ((), ("--dry-run",)):
        code, out, err = say("run", str(file), *more)
        assert (code, out) == (2, "")
        assert (
            "qwen-sd-vllm is a service (serve), and a run ends with every arm and node at 0; remove the"
            in err
        )
        assert len(err.splitlines()) == 1


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
    file = variation(lambda data: data["cluster"].update(network={"interface_endpoints": True}))
    assert "interface endpoints by the hour" in say("cost", str(file))[1]


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize("below", ["", "new/results"])
def test_a_folder_that_takes_no_results_is_refused_before_a_node_starts(
    below: str, more: tuple[str, ...], say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    code, _, err = say("run", str(ROOT / "experiments/qwen3-32b.yaml"), "--out", str(file / below), *more)
    assert (code, err.count("\n"), "is not a folder; choose another folder" in err) == (2, 1, True)
    assert file.read_text() == "mine"
