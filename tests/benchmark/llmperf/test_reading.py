"""Lines of llmperf's program as records of this project."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark.analyse.values import request_values
from benchmark.llmperf.reading import Pairing, record
from benchmark.measure.records import RequestRecord

ABOUT = {"run": "r1", "arm": "fused", "class_": "sonnets", "concurrency": 4}


def line(**changes: Any) -> dict[str, Any]:
    return {
        "error_code": None,
        "error_msg": "",
        "number_input_tokens": 64,
        "started_unix_s": 1_790_000_040.123,
        "prompt_sha256": "ab" * 32,
        "chunk_s": [0.1, 0.2, 0.3, 0.4],
        "stream_chunks": 5,
        "usage": {"prompt_tokens": 80, "completion_tokens": 10},
        "finish_reason": "length",
        "done": True,
        "text": "four chunks",
    } | changes


def _record(**changes: Any) -> RequestRecord:
    return record(line(**changes), about=ABOUT, pairing=Pairing())


def test_both_times_of_a_token_follow_from_the_record() -> None:
    values = request_values(_record(), 7)
    assert values["tpot_s"] == pytest.approx(0.3 / 9)
    assert values["llmperf_inter_token_latency_s"] == pytest.approx(0.4 / 5)
    assert values["ttft_s"] == 0.1
    assert values["e2e_s"] == 0.4


def test_tokens_are_the_servers_and_not_llamas() -> None:
    found = _record()
    assert (found.prompt_tokens, found.completion_tokens) == (80, 10)
    assert found.token_source == "final-usage"


def test_what_the_server_does_not_say_is_unknown_and_not_zero() -> None:
    found = _record(usage={})
    assert found.completion_tokens is None
    assert found.prompt_tokens is None
    assert set(request_values(found, 7)) == {"ttft_s", "e2e_s", "llmperf_inter_token_latency_s"}


def test_the_same_prompt_for_the_same_time_is_a_pair_across_arms() -> None:
    asked = [line(), line(prompt_sha256="cd" * 32), line()]
    ids = []
    for arm in ("plain", "fused"):
        pairing = Pairing()
        ids.append([record(one, about={**ABOUT, "arm": arm}, pairing=pairing).pair_id for one in asked])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 3
    assert ids[0][2] == "sonnets/c4/abababababab/0002"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"error_code": 503, "error_msg": "overloaded"}, "http_503"),
        (
            {"error_code": -1, "error_msg": "ConnectionError: HTTPConnectionPool(host='arm'): refused"},
            "connect_failed",
        ),
        ({"error_code": -1, "error_msg": "ReadTimeout: read timed out"}, "timeout"),
        ({"error_code": -1, "error_msg": "ChunkedEncodingError: broken"}, "reset"),
        ({"error_code": -1, "error_msg": ""}, "llmperf_error"),
        ({"error_code": "BadRequest", "error_msg": "no"}, "llmperf_error"),
        ({"done": False}, "no_done"),
        ({"chunk_s": []}, "zero_tokens"),
    ],
)
def test_a_failure_has_a_name_and_no_number(told: dict[str, Any], name: str) -> None:
    found = _record(**told)
    assert found.error == name
    assert found.ttft_s is None
    assert found.completion_tokens is None
    assert request_values(found, 7) == {}
