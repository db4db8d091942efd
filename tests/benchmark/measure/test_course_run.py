"""`run` against servers that become slower, stay as they are or start again: what it says of its own course."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from aiohttp import web

from tests.benchmark.endpoint import MODEL, Endpoint, Timing
from tests.conftest import ROOT

STEP_S, TOKENS, PASSES, REQUESTS, PROMPTS = 0.008, 10, 6, 16, 8
RESTARTS_AFTER = 40
"""Answers of `steady`, after which its counters begin again."""
SLOWER_BY = 0.5
"""Of `slower`, over the whole run."""


class Ageing(Endpoint):
    """`steady` keeps its step and loses its counters once; the step of `slower` grows with each answer."""

    def __init__(self) -> None:
        super().__init__({"steady": Timing(first_s=STEP_S, step_s=STEP_S)})
        self.metrics["steady"] = self._counted

    def _ended(self, arm: str) -> int:
        return sum(seen.arm == arm and seen.ended > 0 for seen in self.seen)

    def _counted(self) -> str:
        ended = self._ended("steady")
        restarted = RESTARTS_AFTER if ended >= RESTARTS_AFTER else 0
        return f"vllm:generation_tokens_total {(ended - restarted) * TOKENS}\n"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        share = self._ended("slower") / (PASSES * REQUESTS)
        self.arms["slower"] = Timing(first_s=STEP_S, step_s=STEP_S * (1 + SLOWER_BY * share))
        return await super()._answer(request)


def test_a_run_tells_the_arm_that_became_slower_and_the_server_that_restarted(tmp_path: Path) -> None:
    with Ageing() as server:
        plan = {
            "schema": 1,
            "experiment": "course",
            "model": MODEL,
            "baseline": "steady",
            "arms": [{"name": arm, "url": server.url(arm)} for arm in ("steady", "slower")],
            "concurrency": [2],
            "requests": REQUESTS,
            "rounds": PASSES,
            "warmup": 0,
            "max_tokens": TOKENS,
            "prompts": [{"id": f"p{i}", "class": "chat", "prompt": f"prompt {i}"} for i in range(PROMPTS)],
        }
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        command = ["run", "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]
        words = [sys.executable, "-m", "benchmark", *command]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["course"]
    trends = {one["arm"]: one for one in found["trends"]}
    assert trends["slower"]["verdict"] == "slower", done.stderr
    assert 1 / (1 + SLOWER_BY) - 0.1 < trends["slower"]["ratio"] < 0.8
    assert trends["steady"]["verdict"] != "slower"
    assert [one["arm"] for one in found["restarts"]] == ["steady"]
    assert found["gaps"] == []
    said = " ".join(done.stdout.split())
    assert "seconds of loading (seasonal Kendall test): slower was 0." in said
    assert "! counters began again, so a server restarted or several share an address: steady 1 time," in said
