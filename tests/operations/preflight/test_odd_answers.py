"""The market of `preflight` asks a real HTTP server that answers one question of one region oddly: that is a line, and everything else
is still said."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import boto3
import pytest
from botocore.config import Config

from tests.operations.conftest import Offers
from tests.operations.recorded import ASKED
from trnspec.operations.cloud.aws import Aws, AwsError

TYPE, ODD = "trn2.48xlarge", "sa-east-1"
SETS = {
    "DescribeRegions": "regionInfo",
    "DescribeInstanceTypeOfferings": "instanceTypeOfferingSet",
    "DescribeSpotPriceHistory": "spotPriceHistorySet",
    "DescribeCapacityBlockOfferings": "capacityBlockOfferingSet",
    "DescribeAvailabilityZones": "availabilityZoneInfo",
}


def _sound(operation: str, region: str, code: str) -> list[dict[str, Any]]:
    """What EC2 and Service Quotas answer."""
    zone = f"{region}a"
    return {
        "DescribeRegions": [
            {"regionName": name, "optInStatus": "opt-in-not-required"} for name in ("us-east-2", ODD)
        ],
        "DescribeInstanceTypeOfferings": [{"instanceType": TYPE, "location": zone}],
        "DescribeSpotPriceHistory": [
            {
                "availabilityZone": zone,
                "instanceType": TYPE,
                "productDescription": "Linux/UNIX",
                "spotPrice": "10.5",
                "timestamp": "2026-10-02T00:00:00Z",
            }
        ],
        "DescribeCapacityBlockOfferings": [
            {
                "capacityBlockOfferingId": "cb-0123456789abcdef0",
                "instanceType": TYPE,
                "availabilityZone": zone,
                "instanceCount": "1",
                "startDate": "2026-10-04T11:30:00Z",
                "endDate": "2026-10-05T11:30:00Z",
                "upfrontFee": "858.26",
                "currencyCode": "USD",
            }
        ],
        "DescribeAvailabilityZones": [{"zoneName": zone}],
        "GetServiceQuota": [{"QuotaCode": code, "ServiceCode": "ec2", "Value": 256.0}],
    }[operation]


class _Answers(BaseHTTPRequestHandler):
    """EC2's XML, and the JSON of Service Quotas; `odd` is what is different in one operation."""

    odd: ClassVar[tuple[str, Any]] = ("", {})

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        target = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        operation = target or parse_qs(body)["Action"][0]
        region = self.headers["Authorization"].split("/")[2]
        items = _sound(operation, region, json.loads(body).get("QuotaCode", "") if target else "")
        where, odd = self.odd
        if operation == where and (operation == "DescribeRegions" or region == ODD):
            if not isinstance(odd, dict):
                return self._send(*odd)
            items = [{**one, **odd} for one in items] if odd else []
            items = [{key: value for key, value in one.items() if value != "absent"} for one in items]
        self._send(200, _as_json(items) if target else _as_xml(operation, items))

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("x-amzn-RequestId", "0a1b")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def _as_xml(operation: str, items: list[dict[str, Any]]) -> str:
    inner = "".join(
        f"<item>{''.join(f'<{key}>{value}</{key}>' for key, value in one.items())}</item>" for one in items
    )
    name = SETS[operation]
    return f"<{operation}Response><requestId>0a1b</requestId><{name}>{inner}</{name}></{operation}Response>"


def _as_json(items: list[dict[str, Any]]) -> str:
    return json.dumps({"Quota": items[0]} if items else {})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def answers(address: str, credentials: None, monkeypatch: pytest.MonkeyPatch) -> type[_Answers]:
    """Real clients of boto3, which ask that server once."""
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: _client(service, self.region, address))
    monkeypatch.setattr("trnspec.operations.cloud.clock.Clock.now", lambda _: ASKED)
    monkeypatch.setattr(_Answers, "odd", ("", {}))
    return _Answers


@cache
def _client(service: str, region: str, address: str) -> Any:
    keys: Any = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "made-up"}
    once = Config(retries={"total_max_attempts": 1})
    return boto3.client(service, region_name=region, endpoint_url=address, config=once, **keys)


PAGE = "<html><body>Please log in</body></html>"
SPOT, BLOCK, QUOTA = "DescribeSpotPriceHistory", "DescribeCapacityBlockOfferings", "GetServiceQuota"
ODD_ANSWERS = [
    *((SPOT, {"spotPrice": odd}, f"SpotPrice is '{odd}'") for odd in ("NaN", "Infinity", "-1", "free", "1e400")),
    (SPOT, {"spotPrice": "0.000"}, "SpotPrice is 0"),
    (SPOT, {"spotPrice": "absent"}, "it has no SpotPrice"),
    (SPOT, {"timestamp": "soon"}, "unexpected answer"),
    (SPOT, {}, f"{ODD}: no spot price in 30 days"),
    (SPOT, (200, PAGE), "unexpected answer"),
    (SPOT, (503, PAGE), "503: Service Unavailable"),
    *((BLOCK, {"upfrontFee": odd}, f"UpfrontFee is '{odd}'") for odd in ("NaN", "-5", "three")),
    (BLOCK, {"upfrontFee": "0"}, "UpfrontFee is 0"),
    (BLOCK, {"upfrontFee": "absent"}, "it has no UpfrontFee"),
    (BLOCK, {"currencyCode": "EUR"}, "CurrencyCode EUR"),
    (BLOCK, {"endDate": "2026-10-01T00:00:00Z"}, "EndDate 2026-10-01"),
    (BLOCK, {"startDate": "absent"}, "it has no StartDate"),
    (BLOCK, {"instanceCount": "two"}, "unexpected answer"),
    (BLOCK, {"capacityBlockOfferingId": "absent"}, "it has no CapacityBlockOfferingId"),
    (BLOCK, {}, f"{ODD}: no Capacity Block for so many hours"),
    *((QUOTA, {"Value": odd}, "Value is ") for odd in (float("nan"), float("inf"), -1.0, "many")),
    *((QUOTA, {"Value": odd}, "it has no Value") for odd in ("absent", None)),
    (QUOTA, {}, "it has no Quota"),
    ("DescribeInstanceTypeOfferings", {"location": "absent"}, f"no answer: {ODD}: ec2:DescribeInstanceTypeOfferings"),
    ("DescribeAvailabilityZones", {"zoneName": "absent"}, "it has no ZoneName"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "odd", "says"), ODD_ANSWERS)
def test_an_odd_answer_of_one_region_is_a_line(
    answers: type[_Answers], file: Path, offers: Offers, operation: str, odd: Any, says: str
) -> None:
    answers.odd = operation, odd
    _, out = offers(file)
    assert says in (text := " ".join(out.split())), out
    assert re.search(r"spot us-east-2a 10\.50 .* block us-east-2a 35\.76", text), (
        "the other region is complete"
    )
    table = out.partition("\n\n")[2].partition("\n\n")[0].lower()
    assert ("nan" in table, "inf" in table) == (False, False), table


def test_everything_is_said_where_all_answers_are_sound(
    answers: type[_Answers], file: Path, offers: Offers
) -> None:
    found = sorted((offer["region"], offer["kind"]) for offer in offers(file)[0]["offers"])
    assert found == [(one, kind) for one in (ODD, "us-east-2") for kind in ("capacity-block", "spot")]


def test_without_regions_nothing_is_known(answers: type[_Answers], file: Path, offers: Offers) -> None:
    answers.odd = "DescribeRegions", {"regionName": "absent"}
    with pytest.raises(AwsError, match=r"ec2:DescribeRegions in us-east-2: unexpected answer \("):
        offers(file)
