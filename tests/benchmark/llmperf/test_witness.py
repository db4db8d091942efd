"""The witness between llmperf's client and the network, on real streams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from benchmark.llmperf.witness import Witness
from tests.benchmark.endpoint import MODEL, Endpoint, Timing

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "stream": True, "max_tokens": 7}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint({"fused": Timing(first_s=0.03, step_s=0.02, sizes=(3,), usage="final")}) as server:
        yield server


def _read(witness: Witness, url: str) -> list[bytes]:
    """As llmperf's client reads: every line that is not empty."""
    with witness.post(f"{url}/chat/completions", json=BODY, stream=True, timeout=5) as response:
        assert response.status_code == 200
        return [line for line in response.iter_lines(chunk_size=None) if line.strip()]


def test_llmperf_sees_every_event_but_the_one_with_usage_alone(endpoint: Endpoint) -> None:
    witness = Witness()
    lines = _read(witness, endpoint.url("fused"))
    assert lines[-1] == b"data: [DONE]"
    assert len(lines) == 1 + 3 + 1  # role, three steps of 1, 3 and 3 tokens, the end
    assert not any(b'"choices": []' in line for line in lines)


def test_what_llmperf_drops_is_noted(endpoint: Endpoint) -> None:
    witness = Witness()
    _read(witness, endpoint.url("fused"))
    notes = witness.notes("?", "text")
    assert notes["usage"] == {"prompt_tokens": 9, "completion_tokens": 7}
    assert notes["stream_chunks"] == 4
    assert notes["finish_reason"] == "length"
    assert notes["done"]
    (seen,) = endpoint.seen
    assert notes["chunk_s"] == pytest.approx(seen.sent, abs=0.05)


def test_a_stream_that_breaks_off_is_noted(endpoint: Endpoint) -> None:
    witness = Witness()
    with pytest.raises(requests.RequestException):
        _read(witness, endpoint.url("reset"))
    assert witness.error.startswith("ChunkedEncodingError: ")
    assert not witness.done


def test_nobody_there_is_noted() -> None:
    witness = Witness()
    with pytest.raises(requests.ConnectionError):
        witness.post("http://127.0.0.1:9/v1/chat/completions", json=BODY, timeout=5)
    assert witness.error.startswith("ConnectionError: ")


def test_an_error_within_the_stream_is_left_to_llmperf() -> None:
    witness = Witness()
    assert witness.passes(b'data: {"error": {"message": "no", "code": 500}}')
    assert witness.passes(b"data: no JSON")
    assert witness.passes(b"")
    assert witness.stream_chunks == 0
