from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from statistics import median
from time import monotonic

import pytest

from tests.benchmark.conftest import plan_content
from tests.benchmark.endpoint import KNOWN, MODEL, Endpoint, served
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.client import ask, http_sessions
from trnspec.benchmark.measure.progress import Progress
from trnspec.benchmark.measure.run import run
from trnspec.benchmark.plan import from_dict

PLAN = from_dict(plan_content(timeout_s=5))
BODY = json.dumps({"model": MODEL, "messages": [], "max_tokens": 40}).encode()


def test_the_first_key_that_is_set_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sent() -> str | None:
        async with http_sessions(PLAN) as http:
            return http["spec"].headers.get("Authorization")

    for keys, expected in (
        (("ours", "usual"), "Bearer ours"),
        (("", " usual\n"), "Bearer usual"),
        (("", ""), None),
    ):
        for name, key in zip(("BENCHMARK_API_KEY", "OPENAI_API_KEY"), keys, strict=True):
            monkeypatch.setenv(name, key)
        assert asyncio.run(sent()) == expected


@pytest.mark.parametrize("named", [{"api_key_env": "VENDOR"}, {"headers_env": {"x-key": "VENDOR"}}])
def test_the_key_of_all_arms_goes_to_none_once_one_arm_names_its_own(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, object]
) -> None:
    steady, spec = plan_content()["arms"]
    plan = from_dict(plan_content(arms=[steady, spec | named]))
    monkeypatch.setenv("BENCHMARK_API_KEY", "of another vendor")
    monkeypatch.setenv("VENDOR", "theirs")

    async def sent() -> list[str]:
        async with http_sessions(plan) as http:
            return [value for session in http.values() for value in session.headers.values()]

    assert not [value for value in asyncio.run(sent()) if "another vendor" in value]


@pytest.mark.parametrize(
    ("path", "idle_s", "requests", "connections"),
    [("early-eos", 1.0, 2, 1), ("early-eos", 4.5, 2, 2), ("late-end", 0.0, 10, 5)],
    ids=["quick", "uvicorn closes connections that were idle for 5 s", "an answer ends a moment after DONE"],
)
def test_a_connection_is_used_again_unless_a_server_may_be_closing_it(
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    idle_s: float,
    requests: int,
    connections: int,
) -> None:
    """A request into a connection that is being closed would count as the server's failure."""

    async def several() -> None:
        async with http_sessions(PLAN) as http:
            for number in range(requests):
                monkeypatch.setattr("aiohttp.connector.monotonic", lambda n=number: monotonic() + idle_s * n)
                answer = await ask(http["spec"], endpoint.url(path) + "/chat/completions", BODY)
                assert answer.error is None

    asyncio.run(several())
    used = len({seen.peer for seen in endpoint.seen})
    assert used == connections or (path == "late-end" and used <= connections), "1, but on a busy machine"


@pytest.mark.slow
def test_the_client_finds_each_chunk_of_a_known_schedule_with_its_tokens(tmp_path: Path) -> None:
    with served(first_ms=8, step_ms=2) as server:
        arms = [{"name": arm, "url": server.url(arm)} for arm in KNOWN]
        plan = from_dict(plan_content(model=MODEL, arms=arms, requests=6, warmup=0, max_tokens=20))
        asyncio.run(run(plan, out=tmp_path, progress=Progress(io.StringIO())))
        truths = {(truth["arm"], truth["key"]): truth for truth in server.truth()}
    late_s: list[float] = []
    requests = journal.read(tmp_path).requests
    for record in requests:
        truth = truths.pop((record.arm, record.nonce))
        assert list(record.chunk_tokens or ()) == truth["tokens"]
        late_s.append(record.chunk_s[0] - truth["sent_s"][0])
    assert truths == {}
    assert {record.phase for record in requests} == {"ramp", "measured", "drain"}
    assert -0.001 < median(late_s) < 0.03, "nothing is received before it is sent"
