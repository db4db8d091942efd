"""Prices that are fetched, kept, and preferred to the catalogue's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from botocore.stub import ANY, Stubber

from experiment import Experiment
from experiment.catalogue.prices import Price
from experiment.cost import Item, running
from experiment.finding import Misuse, Outside
from operations import prices
from operations.cloud.aws import Aws
from tests.operations.clients import stubbed

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
    item: Item = running(experiment)[0]
    assert prices.read(file, region="us-east-2").of(item).usd_per_hour == 40.5
    assert prices.read(file, region="us-west-2").of(item) == item


def test_another_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text("[]")
    with pytest.raises(Misuse, match="is no file of prices"):
        prices.write(file, region="us-east-2", prices={})
    assert file.read_text() == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"us-east-2": {"x": {"item": "x", "usd_per_hour": true, "as_of": "", "source": ""}}}',
        '{"us-east-2": {"x": {"item": "x", "usd_per_hour": 1, "as_of": {}, "source": ""}}}',
        " " * 2**21,
    ],
    ids=["nested deeply", "true dollars", "a date that is an object", "too long"],
)
def test_a_damaged_file_of_prices_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(Misuse, match=r"remove it and run scripts/cost --refresh$"):
        prices.read(file, region="us-east-2")


def test_a_pipe_of_prices_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "prices.json")
    with pytest.raises(Misuse, match="is not a regular file"):
        prices.read(tmp_path / "prices.json", region="us-east-2")
