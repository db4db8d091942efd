from __future__ import annotations

import asyncio
import io
from pathlib import Path
from statistics import median

from benchmark.measure import journal
from benchmark.measure.progress import Progress
from benchmark.measure.rounds import run
from benchmark.plan import from_dict
from tests.benchmark.conftest import plan_content
from tests.benchmark.known_server import MODEL, SIZES, served


def test_the_client_finds_each_chunk_of_a_known_schedule_with_its_tokens(tmp_path: Path) -> None:
    with served(first_ms=8, step_ms=2) as server:
        arms = [{"name": arm, "url": server.url(arm)} for arm in SIZES]
        plan = from_dict(plan_content(model=MODEL, arms=arms, requests=6, warmup=0, max_tokens=20))
        asyncio.run(run(plan, out=tmp_path, timeout_s=20, progress=Progress(io.StringIO())))
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
