"""`run` against servers that become slower, stay as they are or start again: what it says of its own course."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.conftest import ROOT

STEP_S, TOKENS, PASSES, REQUESTS, PROMPTS = 0.008, 10, 6, 16, 8
RESTARTS_AFTER = 40
"""Answers of `steady`, after which its counters begin again."""
SLOWER_BY = 0.5
"""Of `slower`, over the whole run."""


class Servers:
    """`steady` keeps its step and loses its counters once; the step of `slower` grows with each answer."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{arm}/v1/models", self._models)
        app.router.add_get("/{arm}/metrics", self._metrics)
        app.router.add_post("/{arm}/v1/completions", self._answer)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "known", "owned_by": "vllm"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        arm = request.match_info["arm"]
        ended = self.answers[arm]
        if arm == "steady" and ended >= RESTARTS_AFTER:
            ended -= RESTARTS_AFTER
        return web.Response(text=f"vllm:generation_tokens_total {ended * TOKENS}\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arm, now = request.match_info["arm"], asyncio.get_running_loop().time
        share = self.answers[arm] / (PASSES * REQUESTS) if arm == "slower" else 0.0
        step_s, due = STEP_S * (1 + SLOWER_BY * share), now()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for sent in range(1, TOKENS + 1):
            due += step_s
            await asyncio.sleep(due - now())
            await response.write(_event([{"index": 0, "text": "w ", "finish_reason": None}], sent))
        await response.write(_event([], TOKENS) + b"data: [DONE]\n\n")
        self.answers[arm] += 1
        return response


def _event(choices: list[dict[str, Any]], done: int) -> bytes:
    usage = {"prompt_tokens": 9, "total_tokens": 9 + done, "completion_tokens": done}
    event = {"id": "x", "object": "text_completion", "created": 0, "model": "known", "choices": choices}
    return b"data: " + json.dumps({**event, "usage": usage}).encode() + b"\n\n"


async def _serve() -> None:
    runner = web.AppRunner(Servers().app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


def test_a_run_tells_the_arm_that_became_slower_and_the_server_that_restarted(tmp_path: Path) -> None:
    module = "tests.benchmark.measure.test_course_run"
    with subprocess.Popen(
        [sys.executable, "-m", module], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().strip()
            plan = {
                "schema": 1,
                "experiment": "course",
                "model": "known",
                "baseline": "steady",
                "arms": [{"name": arm, "url": f"{address}/{arm}/v1"} for arm in ("steady", "slower")],
                "concurrency": [2],
                "requests": REQUESTS,
                "rounds": PASSES,
                "warmup": 0,
                "max_tokens": TOKENS,
                "prompts": [
                    {"id": f"p{i}", "class": "chat", "prompt": f"prompt {i}"} for i in range(PROMPTS)
                ],
            }
            (tmp_path / "plan.json").write_text(json.dumps(plan))
            command = ["run", "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]
            done = subprocess.run(
                [sys.executable, "-m", "benchmark", *command],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            server.terminate()
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


if __name__ == "__main__":
    asyncio.run(_serve())
