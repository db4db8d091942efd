"""Information of a server about itself: its models (`/models`), its counters (`/metrics`), its version (`/version`), and the optional
fields of a request that it takes.

vLLM counts per engine and model since its start. So the difference over a block is that of the block, as long as there is no other
traffic. https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from trnspec.benchmark.errors import EndpointError
from trnspec.benchmark.measure.api_key import KEY_REMEDY
from trnspec.benchmark.measure.client import Sessions, ask, one_line, read_at_most, request_body, request_path
from trnspec.benchmark.measure.records import (
    COUNTED_ACCEPTED,
    COUNTED_DRAFTED,
    COUNTED_DRAFTS,
    COUNTED_GENERATED,
    COUNTED_PER_POSITION,
    MAX_COUNTED,
)
from trnspec.benchmark.measure.schedule import Pair
from trnspec.benchmark.measure.stream import StreamFault
from trnspec.benchmark.plan import OPTIONAL_FIELDS, Plan, PlannedArm
from trnspec.core.files import json_of

OF_DRAFTS = (COUNTED_DRAFTS, COUNTED_DRAFTED, COUNTED_ACCEPTED)
"""The counters of drafts."""
_COUNTED = (COUNTED_GENERATED, *OF_DRAFTS, COUNTED_PER_POSITION)
_LINE = re.compile(r"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,3})"')
_INFO, _LABEL = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE), re.compile(r'(\w+)="([^"]*)"')
_SETTINGS = ("block_size", "cache_dtype", "enable_prefix_caching")
"""Settings of vLLM's key-value cache that change a step or an answer. Its `/metrics` and `/version` say nothing of the scheduler
(vLLM 0.29.0: v1/metrics/loggers.py, `log_metrics_info`; entrypoints/serve/instrumentator/basic.py)."""
_ROOM = "kv_tokens"
_REFUSED = ("http_400", "http_422")
"""Answers to a request with a field that the server does not take."""
_MODELS_TIMEOUT, _PAGE_TIMEOUT = aiohttp.ClientTimeout(total=15), aiohttp.ClientTimeout(total=5)
_MAX_MODELS_BYTES, _MAX_METRICS_BYTES, _MAX_SETTINGS_BYTES = 8 << 20, 16 << 20, 2 << 20
"""The maximum bytes of a list of models, of a server's metrics, and of a page with settings."""
_MAX_MODELS_NAMED, _MAX_TEXTS, _MAX_VALUE_CHARS = 10, 100, 100
"""The maximum number of models in a message, of texts of an emulator, and of characters of an owner or a setting."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Information of an endpoint about itself."""

    owner: str
    """The owner of the model."""
    cautions: tuple[str, ...] = ()
    """Cautions of an emulator about its timings."""
    made_up: tuple[str, ...] = ()
    """Classes for which an emulator does not know the acceptance."""

    @property
    def emulated(self) -> bool:
        return self.owner.lower().startswith("emulat")


async def endpoints(http: Sessions, plan: Plan) -> dict[str, Endpoint]:
    """The information of the endpoint of each arm. Raises EndpointError if the model is not served."""
    return {arm.name: await _endpoint(http[arm.name], arm, plan.model) for arm in plan.arms}


async def _endpoint(http: aiohttp.ClientSession, arm: PlannedArm, model: str) -> Endpoint:
    where = f"{arm.name}: {arm.url}/models"
    remedy = f"is this its address? --arm {arm.name}=URL names another"
    try:
        async with http.get(f"{arm.url}/models", timeout=_MODELS_TIMEOUT, allow_redirects=False) as response:
            if response.status in (401, 403):
                raise EndpointError(f"{where}: answered HTTP {response.status}; {KEY_REMEDY}")
            if response.status != 200:  # redirects are not followed, as for requests to the arm
                to = response.headers.get("Location")
                answered = f"HTTP {response.status}{f' (to {one_line(to, 200)})' if to else ''}"
                raise EndpointError(f"{where}: answered {answered}; {remedy}")
            content = await read_at_most(response, _MAX_MODELS_BYTES)
    except StreamFault as fault:
        raise EndpointError(f"{where}: {one_line(f'{fault.name}: {fault}')}; {remedy}") from fault
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        reason = one_line(str(error)) or "no answer in 15 s"
        raise EndpointError(f"{where}: {reason}; is it up, and {remedy}") from error
    try:
        served = {str(entry["id"]): _about(entry) for entry in json_of(content)["data"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = "an HTML page" if content.lstrip().startswith(b"<") else "not a list of models"
        raise EndpointError(f"{where}: answered {what}; {remedy}") from error
    if model not in served:
        named = [one_line(name, 100) for name in list(served)[:_MAX_MODELS_NAMED]]
        has = ", ".join(named) + (" ..." if len(served) > _MAX_MODELS_NAMED else "") or "nothing"
        raise EndpointError(
            f"{where}: serves {has}, not {model!r}; correct --model, or the address of the arm"
        )
    return served[model]


def _about(entry: Mapping[str, Any]) -> Endpoint:
    plain = Endpoint(owner=one_line(str(entry.get("owned_by", "")), _MAX_VALUE_CHARS))
    metadata = entry.get("metadata")
    if not plain.emulated or not isinstance(metadata, dict):
        return plain
    lists = (metadata.get(name) for name in ("cautions", "classes_without_acceptance"))
    texts = [own[:_MAX_TEXTS] if isinstance(own, list) else () for own in lists]
    cautions, made_up = (tuple(one_line(str(text)) for text in own) for own in texts)
    return replace(plain, cautions=cautions, made_up=made_up)


async def with_differences(http: Sessions, plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan, with the differences between the server of each arm and that of its baseline: version and settings of the cache; and the
    known versions by arm."""
    each = await asyncio.gather(*(_settings(http[arm.name], arm) for arm in plan.arms))
    settings, arms = dict(zip(plan.baselines, each, strict=True)), []
    for arm in plan.arms:
        base = plan.baselines[arm.name]
        own, other = settings[arm.name], settings[base]
        differing = [name for name in own if name != _ROOM and other.get(name, own[name]) != own[name]]
        new = (f"{name} is {own[name]}, of {base} {other[name]}" for name in differing)
        changes = tuple(dict.fromkeys((*arm.also_changes, *new)))
        room = int(settings[arm.name][_ROOM]) if _ROOM in settings[arm.name] else None
        arms.append(arm.model_copy(update={"also_changes": changes, "kv_tokens": room}))
    versions = {name: own["version"] for name, own in settings.items() if "version" in own}
    return plan.model_copy(update={"arms": tuple(arms)}), versions


async def with_accepted_fields(http: Sessions, plan: Plan, warn: Callable[[str], None]) -> Plan:
    """The plan without the optional fields that a server refuses: all arms are asked alike. Each arm is asked once, and once more for
    each refused field.

    Raises EndpointError for a model that cannot chat.
    """
    for arm in plan.arms if plan.warmup else ():
        accepted = await _accepted(http[arm.name], plan, arm)
        for name in accepted.left_out[len(plan.left_out) :]:
            effect = f"; {why}" if (why := OPTIONAL_FIELDS[name]) else ""
            warn(f"{arm.name}: refuses {name}, which is left out for all arms{effect}")
        plan = accepted
    return plan


async def _accepted(http: aiohttp.ClientSession, plan: Plan, arm: PlannedArm) -> Plan:
    """The plan as the arm takes it; unchanged if it is refused for another reason."""
    prompt, tried = plan.prompts[0].model_copy(update={"max_tokens": 1}), plan
    pair = Pair(id="fields", prompt=prompt, nonce="000000")
    while True:
        reply = await ask(http, arm.url + request_path(pair), request_body(tried, pair))
        message = reply.message or ""
        if reply.error not in _REFUSED:
            return tried
        if "chat template" in message or "chat_template" in message:
            remedy = "send raw text to a base model: --endpoint completions"
            raise EndpointError(f"{arm.name}: {reply.error}: {message}; {remedy}")
        left = [name for name in OPTIONAL_FIELDS if name not in tried.left_out]
        refused = next((name for name in left if re.search(rf"\b{name}\b", message)), None)
        if refused is None:
            return plan
        tried = plan.model_copy(update={"left_out": (*tried.left_out, refused)})


async def _settings(http: aiohttp.ClientSession, arm: PlannedArm) -> dict[str, str]:
    settings: dict[str, str] = {}
    with suppress(StreamFault, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
        version = json_of(await _page(http, _outside_v1(arm.url, "/version"), _MAX_SETTINGS_BYTES))["version"]
        settings["version"] = one_line(str(version), _MAX_VALUE_CHARS)
    with suppress(StreamFault, aiohttp.ClientError, OSError, ValueError):
        if match := _INFO.search(await _page(http, metrics_url(arm.url), _MAX_SETTINGS_BYTES)):
            labels = dict(_LABEL.findall(match[1]))
            settings |= {
                name: one_line(labels[name], _MAX_VALUE_CHARS) for name in _SETTINGS if name in labels
            }
            room = _room(labels)
            settings |= {_ROOM: str(room)} if 0 < room < 1 << 50 else {}
    return settings


def _room(labels: Mapping[str, str]) -> int:
    """The tokens that fit the key-value cache; 0 if the server does not say so. Versions without a total have blocks, and blocks times their size
    is right for models whose layers share one kind of cache."""
    if (whole := labels.get("kv_cache_size_tokens", "")).isdecimal():
        return int(whole[:20])
    parts = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size")]
    return math.prod(int(part[:10]) for part in parts) if all(map(str.isdecimal, parts)) else 0


async def counters_page(
    http: aiohttp.ClientSession, arm: PlannedArm, warn: Callable[[str], None]
) -> str | None:
    """The text at `/metrics` of the arm's server, empty if it is not usable; None if the server cannot be reached."""
    url = metrics_url(arm.url)
    try:
        return await _page(http, url, _MAX_METRICS_BYTES)
    except (aiohttp.ClientConnectionError, ConnectionError, TimeoutError):
        return None
    except StreamFault as fault:
        warn(f"{url}: {fault.name}: {one_line(str(fault))}; its counters are not used")
    except (aiohttp.ClientError, OSError, ValueError):
        pass
    return ""


async def _page(http: aiohttp.ClientSession, url: str, maximum: int) -> str:
    async with http.get(url, timeout=_PAGE_TIMEOUT, allow_redirects=False) as response:
        body = await read_at_most(response, maximum) if response.status == 200 else b""
        return body.decode(errors="replace")


def metrics_url(base_url: str) -> str:
    """The URL of vLLM's metrics."""
    return _outside_v1(base_url, "/metrics")


def _outside_v1(base_url: str, path: str) -> str:
    """The URL of a page of vLLM that is not below /v1."""
    return base_url.removesuffix("/v1") + path


def counters_in(text: str) -> dict[str, float] | None:
    """The counters in Prometheus' text format, summed over label sets; None without any."""
    counters: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(_COUNTED) or (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        if name == COUNTED_PER_POSITION and (position := _POSITION.search(match["labels"] or "")):
            name = f"{name}/{position[1]}"
        elif name not in (COUNTED_GENERATED, *OF_DRAFTS):
            continue
        with suppress(ValueError):
            if 0 <= (value := float(match["value"])) < math.inf:
                counters[name] = min(counters.get(name, 0.0) + value, MAX_COUNTED)
    return counters or None
