from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from benchmark.measure import journal
from benchmark.measure.progress import Progress
from benchmark.measure.rounds import run
from benchmark.plan import from_dict
from tests.benchmark.conftest import plan_content
from tests.benchmark.known_server import MODEL, SIZES, accuracy, served, timetable
from tests.benchmark.records import answered


def truth(arm: str = "steady", **changes: Any) -> dict[str, Any]:
    known = {"arm": arm, "key": "abc123", "sent_s": [0.098, 0.198, 0.298], "tokens": [1, 1, 1]}
    return known | changes


def test_the_error_is_what_was_measured_less_what_was_sent() -> None:
    found = accuracy([answered()], [truth(), truth(arm="bursts", tokens=[1, 8])], client_lag_s=0.001)
    assert (found.n, found.failed, found.within_limits) == (1, 0, True)
    assert (found.ttft_error_s, found.e2e_error_s) == pytest.approx((0.002, 0.002))
    assert found.tpot_error == pytest.approx(0.0, abs=1e-9)
    for wrong in ([], [truth(tokens=[1, 2, 3])], [truth(sent_s=[0.01, 0.02, 0.03])]):
        assert not accuracy([answered()], wrong, client_lag_s=0.0).within_limits


def test_a_timetable_holds_the_tokens_asked_for() -> None:
    due = list(timetable(SIZES["bursts"], first_s=0.1, step_s=0.045, tokens=40))
    assert [size for _, size in due] == [1, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert [at_s for at_s, _ in due][:3] == pytest.approx([0.1, 0.145, 0.19])


def test_the_client_finds_each_chunk_of_a_known_schedule_with_its_tokens(tmp_path: Path) -> None:
    with served(first_ms=8, step_ms=2) as server:
        arms = [{"name": arm, "url": server.url(arm)} for arm in SIZES]
        plan = from_dict(plan_content(model=MODEL, arms=arms, requests=6, warmup=0, max_tokens=20))
        asyncio.run(run(plan, out=tmp_path, timeout_s=20, progress=Progress(io.StringIO())))
        truths = server.truth()
    for arm in SIZES:
        records = [record for record in journal.read(tmp_path).requests if record.arm == arm]
        found = accuracy(records, truths, client_lag_s=0.0)
        assert (found.n, found.failed) == (len(records), 0)
        assert {record.phase for record in records} == {"ramp", "measured", "drain"}, (
            "each of them, not the counted alone"
        )
        assert found.ttft_error_s > -0.001, "nothing is received before it is sent"
