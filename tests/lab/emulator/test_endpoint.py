"""An arm as its argv says it, and the HTTP dialect, over a real server on loopback with time running a hundred times faster."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.lab.emulator.arms import BASELINE, MODEL, REPETITION, SPECULATIVE
from trnspec.core.findings import Misuse
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.lab.emulator.__main__ import SHUTDOWN_S, EmulatedEndpoint
from trnspec.lab.emulator.payloads import PromptClasses, parse_argv

Json = dict[str, Any]
Session = aiohttp.ClientSession
Test = Callable[..., Any]
USAGE = {"include_usage": True, "continuous_usage_stats": True}
CLASSES = PromptClasses(entries=((REPETITION, "repetition"),), seed=1)


def served(argv: Sequence[str] = SPECULATIVE, *, time_scale: float = 0.01) -> Callable[[Test], Test]:
    """Makes a test of a coroutine whose first argument is a session with a server of `argv`."""

    def decorate(use: Test) -> Test:
        async def serve(**given: Any) -> None:
            application = EmulatedEndpoint(parse_argv(argv), CLASSES, time_scale=time_scale).application()
            runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            try:
                async with Session(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
                    await asyncio.wait_for(use(session, **given), timeout=120)
            finally:
                await runner.cleanup()

        @wraps(use)
        def test(**given: Any) -> None:
            asyncio.run(serve(**given))

        _, *others = signature(use).parameters.values()
        vars(test)["__signature__"] = Signature(others)
        return test

    return decorate


def _chat(**changes: object) -> Json:
    messages = [{"role": "user", "content": f"[7f3a2c] {REPETITION}"}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 64, "temperature": 0.0, "stream": True}
    return {**asked, **changes}


def _completion(**changes: object) -> Json:
    return {"model": MODEL, "prompt": f"[7f3a2c] {REPETITION}", "max_tokens": 64, "stream": True, **changes}


async def _events(session: Session, path: str, body: Json) -> list[Json]:
    """The events of a stream, which must end with [DONE]."""
    async with session.post(path, json=body) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = await response.text()
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def _post(session: Session, path: str, body: object) -> tuple[int, Json]:
    async with session.post(path, json=body) as response:
        return response.status, await response.json()


@served()
async def test_a_chat_stream_opens_with_the_role_counts_every_chunk_and_ends_with_usage(
    session: Session,
) -> None:
    role, *chunks, last = await _events(session, "/v1/chat/completions", _chat(stream_options=USAGE))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["usage"]["completion_tokens"] == 0
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert steps[0] == 1
    assert all(1 <= step <= 7 for step in steps)
    assert max(steps) > 1
    assert sum(steps) == 64
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert last["choices"] == []
    prompt = last["usage"]["prompt_tokens"]
    assert last["usage"] == {"prompt_tokens": prompt, "completion_tokens": 64, "total_tokens": prompt + 64}
    assert {event["object"] for event in (role, *chunks, last)} == {"chat.completion.chunk"}
    assert len({event["id"] for event in (role, *chunks, last)}) == 1


@served()
async def test_usage_is_sent_only_where_asked_for(session: Session) -> None:
    for options, on_each, at_the_end in (
        ({}, False, False),
        ({"include_usage": True}, False, True),
        ({"continuous_usage_stats": True}, False, False),  # needs the other, as in vLLM
        (USAGE, True, True),
    ):
        events = await _events(session, "/v1/completions", _completion(stream_options=options))
        assert ["usage" in event for event in events[:-1]] == [on_each] * (len(events) - 1)
        assert ("usage" in events[-1] and not events[-1]["choices"]) == at_the_end


def test_both_arms_answer_a_prompt_with_the_same_text_by_chat_or_as_raw_text() -> None:
    texts: list[str] = []
    ignored = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5, "no_such_field": [1]}

    async def use(session: Session) -> None:
        events = await _events(session, "/v1/chat/completions", _chat(**ignored))
        texts.append("".join(event["choices"][0]["delta"]["content"] for event in events))
        events = await _events(session, "/v1/completions", _completion())
        texts.append("".join(event["choices"][0]["text"] for event in events))

    served(BASELINE)(use)()
    served()(use)()
    assert len(texts) == 4
    assert len(set(texts)) == 1


@served(time_scale=0.0001)
async def test_a_rerun_repeats_the_chunks_and_a_request_may_leave_its_length_open(session: Session) -> None:
    first, again, reseeded = [
        [event["choices"] for event in await _events(session, "/v1/completions", _completion(**seed))]
        for seed in ({}, {"seed": 1}, {"seed": 2})
    ]
    assert first == again, "without a seed of its own a request takes the plan's, here 1"
    assert first != reseeded
    open_ended = {"stream": True, "stream_options": USAGE}
    *_, short = await _events(session, "/v1/completions", {"prompt": "x", **open_ended})
    assert short["usage"]["completion_tokens"] == 16
    long = _chat(max_tokens=None, ignore_eos=True, **open_ended)
    *_, end = await _events(session, "/v1/chat/completions", long)
    assert end["usage"]["total_tokens"] == 1024


WRONG: tuple[tuple[str, object, str], ...] = (
    ("chat/completions", _chat(max_tokens=1020), "maximum context length is 1024 tokens"),
    ("completions", _completion(prompt="x" * 4000), "maximum context length is 1024 tokens"),
    ("completions", _completion(max_tokens=0), "max_tokens: 0"),
    ("completions", _completion(max_tokens="many"), "max_tokens: 'many'"),
    ("completions", _completion(prompt=[1, 2]), "prompt: [1, 2]"),
    ("completions", _completion(prompt=None), "prompt: None"),
    ("completions", _completion(stream=False), "stream: False"),
    ("completions", {"prompt": "x"}, "stream: None"),
    ("chat/completions", _chat(messages=[]), "messages"),
    ("chat/completions", _chat(messages=["hello"]), "messages"),
    ("chat/completions", [], "body: []"),
    ("chat/completions", _chat(model="gpt-2"), "`gpt-2`"),
    ("completions", _completion(model="gpt-2"), "`gpt-2`"),
)


@served()
async def test_a_wrong_request_gets_vllms_error_and_an_unknown_route_is_refused(session: Session) -> None:
    for path, body, part in WRONG:
        status, error = await _post(session, f"/v1/{path}", body)
        code, kind = (404, "NotFoundError") if "gpt-2" in part else (400, "BadRequestError")
        assert (status, error["code"], error["object"], error["type"]) == (code, code, "error", kind)
        assert part in error["message"]
    async with session.post("/v1/completions", data=b"{") as response:
        assert response.status == 400
        assert (await response.json())["type"] == "BadRequestError"
    for path, status in (("/v1/embeddings", 404), ("/v1/completions", 405)):
        async with session.get(path) as response:
            assert response.status == status


@served()
async def test_models_health_and_version_say_what_is_serving(session: Session) -> None:
    async with session.get("/v1/models") as response:
        card = (await response.json())["data"][0]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == (MODEL, "emulator", 1024)
    assert card["metadata"]["cautions"] == ["every step takes 0.01 of its time"], "which is never hidden"
    async with session.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with session.get("/version") as response:
        assert (await response.json())["version"] == "0.9.1+emulated"


async def _samples(session: Session) -> dict[str, float]:
    async with session.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page = await response.text()
    assert {*re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)} <= {*RUNTIMES["nxdi-vllm-0.9.1"].metrics}
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert all(f'model_name="{MODEL}"' in line for line in lines)
    return {
        re.sub(r'model_name="[^"]*",?', "", line.rpartition(" ")[0]): float(line.rpartition(" ")[2])
        for line in lines
    }


@served()
async def test_metrics_count_what_was_served_a_step_each_as_in_the_engine_of_vllm_0_9_1(
    session: Session,
) -> None:
    events = await _events(session, "/v1/completions", _completion())
    samples = await _samples(session)
    chunks = sum(bool(event["choices"] and event["choices"][0]["text"]) for event in events)
    assert samples["vllm:generation_tokens_total{}"] == chunks < 64
    assert samples["vllm:num_requests_running{}"] == 0


@served(BASELINE, time_scale=1.0)
async def test_a_fifth_request_waits_until_a_slot_is_free_and_a_disconnect_frees_one(
    session: Session,
) -> None:
    body = _completion(max_tokens=900, ignore_eos=True)
    streams = [await session.post("/v1/completions", json=body) for _ in range(5)]
    for stream in streams[:4]:
        await stream.content.readany()
    samples = await _samples(session)
    assert samples["vllm:num_requests_running{}"] == 4
    assert samples["vllm:num_requests_waiting{}"] == 1
    streams[0].close()
    await streams[4].content.readany()
    samples = await _samples(session)
    assert samples["vllm:num_requests_running{}"] == 4
    assert samples["vllm:num_requests_waiting{}"] == 0
    for stream in streams[1:]:
        stream.close()


def test_the_argv_decides_names_slots_length_and_speculation_and_what_has_no_published_timings_is_refused() -> (
    None
):
    arm = parse_argv(SPECULATIVE)
    assert arm.model == "/checkpoints/Qwen/Qwen3-32B"
    assert arm.served_names == ("Qwen/Qwen3-32B",)
    assert (arm.max_num_seqs, arm.max_model_len) == (4, 1024)
    assert (arm.speculative_tokens, arm.draft) == (7, "/checkpoints/Qwen/Qwen3-1.7B")
    arm = parse_argv(shlex.split("vllm serve /m --max-num-seqs 4 --max-model-len 64"))
    assert (arm.served_names, arm.speculative_tokens, arm.draft) == (("/m",), 0, "")
    extra = shlex.split("--no-such-flag --with-value x --inline=y -tp 32 --negative -1 --max-model-len=512")
    arm = parse_argv([*BASELINE, *extra])
    assert (arm.max_model_len, arm.max_num_seqs) == (512, 4), (
        "unknown options are accepted, the last mention counts"
    )
    plain_draft = ["--speculative-config", '{"method": "eagle", "model": "/d", "num_speculative_tokens": 7}']
    fused = parse_argv(
        [*BASELINE, *plain_draft, "--override-neuron-config", '{"enable_fused_speculation": true}']
    )
    assert fused.speculative_tokens == 7, "as AWS runs a plain draft on the 0.9.1 image"
    for config, override, method in (
        ({"method": "ngram"}, {}, "ngram"),
        ({}, {"enable_eagle_speculation": True}, "eagle"),
    ):
        drafting = json.dumps({**config, "model": "/d", "num_speculative_tokens": 7})
        words = ["--speculative-config", drafting, "--override-neuron-config", json.dumps(override)]
        with pytest.raises(Misuse, match=f"method '{method}' has no published timings") as caught:
            parse_argv([*BASELINE, *words])
        assert "\n" not in str(caught.value)
        assert parse_argv([*BASELINE, *words], heads=True).speculative_tokens == 7, (
            "where its steps are given"
        )
