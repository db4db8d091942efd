"""Before the load: which optional fields of a request the servers take. A field that one of them refuses is left out for all arms, so
that all are asked alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import aiohttp

from trnspec.benchmark.errors import EndpointError
from trnspec.benchmark.measure.client import ask, request_body, request_path
from trnspec.benchmark.measure.schedule import Pair
from trnspec.benchmark.plan import OPTIONAL_FIELDS, Plan, PlannedArm

_REFUSED = ("http_400", "http_422")


async def with_accepted_fields(http: aiohttp.ClientSession, plan: Plan, warn: Callable[[str], None]) -> Plan:
    """The plan without the optional fields that a server refuses. Each arm is asked once, and once more for each refused field.

    Raises EndpointError for a model that cannot chat.
    """
    for arm in plan.arms if plan.warmup else ():
        accepted = await _accepted(http, plan, arm)
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
            remedy = "a base model is asked for raw text: --endpoint completions"
            raise EndpointError(f"{arm.name}: {reply.error}: {message}; {remedy}")
        left = [name for name in OPTIONAL_FIELDS if name not in tried.left_out]
        refused = next((name for name in left if re.search(rf"\b{name}\b", message)), None)
        if refused is None:
            return plan
        tried = plan.model_copy(update={"left_out": (*tried.left_out, refused)})
