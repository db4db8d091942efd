"""Are the arms there? Asked once before any load, so that a wrong address costs a second and not a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmark.errors import EndpointError
from benchmark.measure.client import KEY_REMEDY, one_line, read_at_most
from benchmark.measure.records import Provenance
from benchmark.measure.stream import StreamFault
from benchmark.plan import Arm, Plan
from benchmark.reading import json_of

_TIMEOUT = aiohttp.ClientTimeout(total=15)
_MOST_BYTES = 8 << 20
_MOST_NAMED = 10
_MOST_OWNER = 100
_MOST_SAID = 100


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What an endpoint says about itself."""

    owner: str
    """Of the model."""
    cautions: tuple[str, ...] = ()
    """Of an emulator: what its timings were not fitted to."""
    made_up: tuple[str, ...] = ()
    """Of an emulator: classes for which it knows no acceptance."""

    @property
    def emulated(self) -> bool:
        return self.owner.lower().startswith("emulat")


async def endpoints(http: aiohttp.ClientSession, plan: Plan) -> dict[str, Endpoint]:
    """By arm, what the endpoint says about itself. Raises EndpointError where the model is not served."""
    return {arm.name: await _endpoint(http, arm, plan.model) for arm in plan.arms}


def provenance(found: Mapping[str, Endpoint]) -> Provenance:
    """`measured` only if no arm says of itself that its timings come from a model."""
    return "emulated" if any(endpoint.emulated for endpoint in found.values()) else "measured"


async def _endpoint(http: aiohttp.ClientSession, arm: Arm, model: str) -> Endpoint:
    where = f"{arm.name}: {arm.url}/models"
    remedy = f"is this its address? --arm {arm.name}=URL names another"
    try:
        async with http.get(f"{arm.url}/models", timeout=_TIMEOUT, allow_redirects=False) as response:
            if response.status in (401, 403):
                raise EndpointError(f"{where}: answered HTTP {response.status}; {KEY_REMEDY}")
            if response.status != 200:
                raise EndpointError(
                    f"{where}: answered HTTP {response.status}{_location(response)}; {remedy}"
                )
            content = await read_at_most(response, _MOST_BYTES)
    except StreamFault as fault:
        raise EndpointError(f"{where}: {one_line(f'{fault.name}: {fault}')}; {remedy}") from fault
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        why = one_line(str(error)) or "no answer in 15 s"
        raise EndpointError(f"{where}: {why}; is it up, and {remedy}") from error
    try:
        entries = json_of(content)["data"]
        served = {str(entry["id"]): _about(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = "an HTML page" if content.lstrip().startswith(b"<") else "not a list of models"
        raise EndpointError(f"{where}: answered {what}; {remedy}") from error
    if model not in served:
        named = [one_line(name, 100) for name in list(served)[:_MOST_NAMED]]
        has = ", ".join(named) + (" ..." if len(served) > _MOST_NAMED else "") or "nothing"
        raise EndpointError(f"{where}: serves {has}, not {model!r}; correct the plan's model or the arm")
    return served[model]


def _about(entry: Mapping[str, Any]) -> Endpoint:
    plain = Endpoint(owner=one_line(str(entry.get("owned_by", "")), _MOST_OWNER))
    metadata = entry.get("metadata")
    if not plain.emulated or not isinstance(metadata, dict):
        return plain
    texts = {
        name: tuple(one_line(str(text)) for text in found[:_MOST_SAID])
        for name in ("cautions", "classes_without_acceptance")
        if isinstance(found := metadata.get(name), list)
    }
    made_up = texts.get("classes_without_acceptance", ())
    return Endpoint(owner=plain.owner, cautions=texts.get("cautions", ()), made_up=made_up)


def _location(response: aiohttp.ClientResponse) -> str:
    """Where a redirect leads. It is not followed: requests to the arm would not be either."""
    to = response.headers.get("Location")
    return f" (to {one_line(to, 200)})" if to else ""
