"""Before the load, outside its times: whether the baseline answers sensibly (`benchmark.measure.sense`), and what the servers say
that is different between them beside what the plan says.

The run's folder may not exist yet. Nothing is written before the endpoints have answered.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmark.measure import journal, sense
from benchmark.measure.client import Endpoint, Failure, ask, endpoints, one_line, read_at_most, session
from benchmark.measure.journal import Journal
from benchmark.measure.loader import together
from benchmark.measure.progress import Progress
from benchmark.measure.sense import QUESTIONS, Answer
from benchmark.measure.server_metrics import metrics_url
from benchmark.measure.stream import StreamFault
from benchmark.plan import Arm, Plan
from core.reading import json_of

_MAX_TOKENS = 256
"""Of an answer: enough for a model that reasons first, and for a loop to be seen."""
_BRIEFLY = "Answer with one word or number only."
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MOST_BYTES, _MOST_VALUE = 2 << 20, 100
_INFO, _LABEL = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE), re.compile(r'(\w+)="([^"]*)"')
_SETTINGS = ("block_size", "cache_dtype", "enable_prefix_caching")
"""Of vLLM's key-value cache, what changes a step or an answer. Its `/metrics` and `/version` say nothing of the scheduler
(vLLM 0.29.0: v1/metrics/loggers.py, `log_metrics_info`; entrypoints/serve/instrumentator/basic.py)."""


async def before_load(
    plan: Plan, *, out: Path, timeout_s: float, progress: Progress, sense_check: bool = True
) -> Plan:
    """Ask what has to be known before the load, and give the plan with what the servers say of themselves.

    A run that goes on is not asked again. Raises EndpointError, StorageError.
    """
    async with session(timeout_s) as http:
        if not journal.exists(out):
            found = await endpoints(http, plan)
            if why := _skipped(plan, found, sense_check=sense_check):
                progress.tell(f"sense check skipped: {why}")
            else:
                await _ask_baseline(http, plan, out, progress)
        return plan.model_copy(update={"arms": tuple(await _with_differences(http, plan))})


def _skipped(plan: Plan, found: Mapping[str, Endpoint], *, sense_check: bool) -> str:
    """Why the baseline is not asked; empty where it is."""
    if not sense_check:
        return "--no-sense-check was given"
    if any(endpoint.emulated for endpoint in found.values()):
        return "the endpoints are emulated, and their answers mean nothing"
    if all(prompt.messages is None for prompt in plan.prompts):
        return "the plan's prompts are raw text, not messages: a base model does not answer questions"
    return ""


async def _ask_baseline(http: aiohttp.ClientSession, plan: Plan, out: Path, progress: Progress) -> None:
    """One question after the other, so that the answers do not depend on a batch."""
    arm, sha = plan.arm(plan.baseline), plan.sha256()
    url = f"{arm.url}/chat/completions"
    known = {answer.question: answer for answer in sense.read(out, sha)}
    with Journal(out, sense.FILE_NAME) as book:
        for question in (one for one in QUESTIONS if one.text not in known):
            unanswered = Answer(
                plan_sha256=sha,
                arm=arm.name,
                question=question.text,
                accepted=question.accepted,
                asked_unix_s=round(time.time(), 3),
            )
            result = await ask(http, url, _body(plan, question.text), max_tokens=_MAX_TOKENS)
            if isinstance(result, Failure):
                answer = replace(unanswered, error=result.name, message=one_line(result.message))
            else:
                answer = replace(unanswered, text=result.text)
            known[question.text] = answer
            book.write(sense.to_json(answer))
    found = sense.outcome(list(known.values()))
    if found and found["withheld"]:
        progress.warn(f"{found['text']}; this run gets no verdict. --no-sense-check leaves the questions out")
    elif found:
        progress.tell(f"sense check: {found['text']}")


def _body(plan: Plan, question: str) -> bytes:
    """Greedy. Of what the plan merges into its requests, only how the chat is written: the rest may force an answer's form."""
    content: dict[str, Any] = {
        "model": plan.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "messages": [{"role": "user", "content": f"{question} {_BRIEFLY}"}],
    }
    if "chat_template_kwargs" in plan.extra_body:
        content["chat_template_kwargs"] = plan.extra_body["chat_template_kwargs"]
    return json.dumps(content).encode()


async def _with_differences(http: aiohttp.ClientSession, plan: Plan) -> list[Arm]:
    """Arms with what their server says that its baseline's says otherwise."""
    said: dict[str, Mapping[str, str]] = {}

    async def look(arm: Arm) -> None:
        said[arm.name] = await _about(http, arm)

    async with together() as tasks:
        for arm in plan.arms:
            tasks.create_task(look(arm))
    found = []
    for arm in plan.arms:
        base = plan.baselines[arm.name]
        new = (
            text for text in _differences(said[arm.name], said[base], base) if text not in arm.also_changes
        )
        found.append(arm.model_copy(update={"also_changes": (*arm.also_changes, *new)}))
    return found


def _differences(own: Mapping[str, str], other: Mapping[str, str], base: str) -> Iterator[str]:
    for name in own:
        if name in other and own[name] != other[name]:
            yield f"{name} is {own[name]}, of {base} {other[name]}"


async def _about(http: aiohttp.ClientSession, arm: Arm) -> dict[str, str]:
    """The version of an arm's server and settings of its cache, as far as it says them."""
    found: dict[str, str] = {}
    page = await _page(http, metrics_url(arm.url).removesuffix("/metrics") + "/version")
    with suppress(ValueError, KeyError, TypeError):
        found["version"] = one_line(str(json_of(page)["version"]), _MOST_VALUE)
    if match := _INFO.search((await _page(http, metrics_url(arm.url))).decode(errors="replace")):
        labels = dict(_LABEL.findall(match[1]))
        found |= {name: one_line(labels[name], _MOST_VALUE) for name in _SETTINGS if name in labels}
    return found


async def _page(http: aiohttp.ClientSession, url: str) -> bytes:
    """What is there; nothing where the page does not exist."""
    try:
        async with http.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
            return await read_at_most(response, _MOST_BYTES) if response.status == 200 else b""
    except (StreamFault, TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return b""
