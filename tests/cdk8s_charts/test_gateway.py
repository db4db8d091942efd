"""Stories of the gateway: a real nginx with the rendered configuration in front of emulated arms."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cdk8s_charts.nginx import DRAFTED, PLAIN, Running, gateway, needs_nginx
from tests.lab.emulator.arms import MODEL, REPETITION

pytestmark = needs_nginx
Session = aiohttp.ClientSession


def _body(max_tokens: int = 8, **changes: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": REPETITION}]
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "stream": True, **changes}


async def _ask(
    session: Session, running: Running, path: str = "/v1/chat/completions", **how: Any
) -> tuple[int, str, dict[str, str]]:
    body = how.pop("body", None) or _body()
    async with session.post(running.url + path, json=body, **how) as response:
        return (
            response.status,
            await response.text(),
            {name.lower(): value for name, value in response.headers.items()},
        )


def _requests(running: Running) -> dict[str, int]:
    return {name: len(arm.seen) for name, arm in running.arms.items()}


def test_a_class_is_chosen_by_base_url_or_header_and_nothing_else_is_let_through(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path) as (running, session):
            asked = [
                ("/v1/chat/completions", {}, PLAIN),
                ("/json/v1/chat/completions", {}, DRAFTED),
                ("/v1/chat/completions", {"X-Prompt-Class": "code"}, DRAFTED),
                ("/open-ended/v1/chat/completions", {"X-Prompt-Class": "json"}, PLAIN),
                ("/v1/chat/completions", {"X-Prompt-Class": "never measured"}, PLAIN),
            ]
            for path, headers, arm in asked:
                before = _requests(running)
                status, text, given = await _ask(session, running, path, headers=headers)
                assert status == 200
                assert text.endswith("data: [DONE]\n\n")
                assert _requests(running)[arm] == before[arm] + 1, path
                assert running.arms[arm].seen[-1]["path"] == "/v1/chat/completions"
                assert given["x-request-id"] == running.arms[arm].seen[-1]["x-request-id"]
                assert running.arms[arm].seen[-1]["connection"] == "close", (
                    "no POST meets one that the arm closes as idle"
                )
                assert not {"server-timing", "x-powered-by", "via"} & given.keys()
                assert (
                    not {"x-prompt-class", "x-forwarded-for", "x-real-ip"} & running.arms[arm].seen[-1].keys()
                )
            async with session.get(running.url + "/json/v1/models") as models:
                assert (await models.json())["data"][0]["id"] == MODEL
            before = _requests(running)
            for path in (
                "/metrics",
                "/health",
                "/tokenize",
                "/invocations",
                "/v1/embeddings",
                "/poetry/v1/models",
                "/v1/../metrics",
                "/v1/models%0A",
            ):
                async with session.get(running.url + path) as refused:
                    assert refused.status == 404, path
                    assert refused.headers["X-Request-Id"] in {line["request_id"] for line in running.log()}
                    assert "only /v1/chat/completions" in (await refused.json())["error"]["message"]
            assert _requests(running) == before
            log = running.log()
            assert [line["class"] for line in log[:5]] == ["", "json", "code", "open-ended", "never measured"]
            assert {line["request_id"] for line in log[:5]} >= {running.arms[PLAIN].seen[0]["x-request-id"]}

    asyncio.run(story())


def test_names_of_classes_are_told_apart_whatever_they_are(tmp_path: Path) -> None:
    long, odd = "a" * 100, "a b.c+d_-"
    routes = {long: DRAFTED, odd: DRAFTED, "JSON": DRAFTED, "json": PLAIN, "*": PLAIN}

    async def story() -> None:
        async with gateway(tmp_path, routes=routes, classes=(long, odd, "JSON", "json")) as (
            running,
            session,
        ):
            for class_, arm in routes.items():
                before = _requests(running)[arm]
                path = "/v1" if class_ == "*" else f"/{class_.replace(' ', '%20')}/v1"
                assert (await _ask(session, running, f"{path}/chat/completions"))[0] == 200
                assert _requests(running)[arm] == before + 1, class_
            before = _requests(running)[PLAIN]
            await _ask(session, running, headers={"X-Prompt-Class": odd.replace(".", "x")})
            assert _requests(running)[PLAIN] == before + 1, "a point is a point"

    asyncio.run(story())


def test_the_request_above_the_limit_goes_to_the_plain_arm(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, most_at_once=5, time_scale=0.2) as (running, session):
            answers = [_ask(session, running, "/json/v1/chat/completions", body=_body(64)) for _ in range(12)]
            results = await asyncio.gather(*answers)
            assert {status for status, *_ in results} == {200}
            assert _requests(running) == {DRAFTED: 5, PLAIN: 7}
            assert running.arms[DRAFTED].most_open == 5
            took = Counter((line["second_choice"], line["failed_over"]) for line in running.log())
            assert took == {(0, 0): 5, (1, 0): 7}
            assert (await _ask(session, running, "/json/v1/chat/completions"))[0] == 200
            assert _requests(running)[DRAFTED] == 6, "places are free again"

    asyncio.run(story())


@pytest.mark.parametrize(("gone", "path"), [(DRAFTED, "/json/v1"), (PLAIN, "/v1")])
def test_what_an_absent_arm_cannot_take_the_other_does_and_the_log_counts_it(
    tmp_path: Path, gone: str, path: str
) -> None:
    async def story() -> None:
        async with gateway(tmp_path) as (running, session):
            await running.arms[gone].stop()
            for _ in range(6):
                status, text, _ = await _ask(session, running, f"{path}/chat/completions")
                assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
            log = running.log()
            assert all(line["second_choice"] == 1 for line in log)
            assert sum(line["failed_over"] for line in log) >= 2, "then it is left alone for a while"
            for arm in running.arms.values():
                await arm.stop()
            status, text, _ = await _ask(session, running, f"{path}/chat/completions")
            assert (status, json.loads(text)["error"]["code"]) == (502, 502)

    asyncio.run(story())


def test_a_stream_that_began_is_never_sent_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, time_scale=1.0) as (running, session):
            async with session.post(running.url + "/json/v1/chat/completions", json=_body(600)) as response:
                await response.content.readline()
                await running.arms[DRAFTED].stop()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            assert _requests(running) == {PLAIN: 0, DRAFTED: 1}

    asyncio.run(story())


def test_long_prompts_and_callers_without_a_key_reach_no_arm(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, needs_key=True) as (running, session):
            key = {"Authorization": "Bearer of-the-caller"}
            long = _body(messages=[{"role": "user", "content": "x" * 4096}])
            status, text, _ = await _ask(session, running, body=long, headers=key)
            assert (status, json.loads(text)["error"]["code"]) == (413, 413)
            status, text, _ = await _ask(session, running)
            assert (status, "API key" in text) == (401, True)
            assert _requests(running) == {PLAIN: 0, DRAFTED: 0}
            assert (await _ask(session, running, headers=key))[0] == 200
            assert running.arms[PLAIN].seen[0]["authorization"] == key["Authorization"]

    asyncio.run(story())


def test_many_slow_long_prompts_wait_outside_memory_and_arrive_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, body_bytes=500_000) as (running, session):
            slow = list[asyncio.StreamWriter]()
            for _ in range(100):
                _, writer = await asyncio.open_connection("127.0.0.1", running.configuration.port)
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 490000\r\n\r\n"
                    + b"x" * 400_000
                )
                await writer.drain()
                slow.append(writer)
            await asyncio.sleep(1)
            own = subprocess.run(
                ["ps", "-o", "rss=", "--ppid", str(running.process.pid)], capture_output=True, text=True
            )
            assert sum(map(int, own.stdout.split())) < 30_000, "KiB; with bodies in memory it is 50,000"
            long = _body(messages=[{"role": "user", "content": "x" * 300_000}])
            status, text, _ = await _ask(session, running, body=long)
            assert status == 400, text[:300]
            assert int(running.arms[PLAIN].seen[-1]["content-length"]) > 300_000
            for writer in slow:
                writer.close()
                await writer.wait_closed()

    asyncio.run(story())


def test_a_slow_client_takes_no_place_before_its_prompt_is_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, most_at_once=2) as (running, session):
            body = json.dumps(_body()).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", running.configuration.port)
            head = (
                f"POST /json/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body[:40])
            await writer.drain()
            await asyncio.sleep(0.1)
            assert _requests(running)[DRAFTED] == 0
            assert (await _ask(session, running, "/json/v1/chat/completions"))[0] == 200
            writer.write(body[40:])
            answer = await asyncio.wait_for(reader.readuntil(b"[DONE]"), timeout=30)
            assert b"200 OK" in answer
            writer.close()

    asyncio.run(story())


def test_256_streams_at_once_arrive_as_they_are_sent_and_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, time_scale=0.05) as (running, session):
            paths = ["/v1/chat/completions", "/json/v1/chat/completions"] * 128
            results = await asyncio.gather(*(_ask(session, running, path, body=_body(16)) for path in paths))
            assert Counter(status for status, *_ in results) == {200: 256}
            direct = f"http://127.0.0.1:{running.arms[PLAIN].port}"
            async with session.post(direct + "/v1/chat/completions", json=_body(16)) as response:
                chunks = (await response.text()).count("data: ")
            assert {text.count("data: ") for _, text, _ in results[::2]} == {chunks}, (
                "no chunk was merged or lost"
            )
            assert _requests(running) == {PLAIN: 129, DRAFTED: 128}

    asyncio.run(story())


def test_a_reload_while_answers_stream_ends_none_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway(tmp_path, time_scale=0.2) as (running, session):
            streams = [asyncio.create_task(_ask(session, running, body=_body(64))) for _ in range(8)]
            while len(running.arms[PLAIN].seen) < 8:
                await asyncio.sleep(0.01)
            running.reload(routes={"*": DRAFTED})
            for _ in range(100):
                # A connection that waits for the next request is closed by a reload, and a caller repeats what it could not send.
                await _ask(session, running, headers={"Connection": "close"})
                if running.arms[DRAFTED].seen:
                    break
            else:
                raise AssertionError("the new routes never came")
            results = await asyncio.gather(*streams)
            assert {(status, text.endswith("[DONE]\n\n")) for status, text, _ in results} == {(200, True)}

    asyncio.run(story())
