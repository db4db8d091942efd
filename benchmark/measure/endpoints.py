"""Are the arms there? Asked once before any load, so that a wrong address costs a second and not a run."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from benchmark.errors import EndpointError
from benchmark.measure.client import one_line
from benchmark.measure.records import Provenance
from benchmark.plan import Arm, Plan

_TIMEOUT = aiohttp.ClientTimeout(total=15)


async def owners(http: aiohttp.ClientSession, plan: Plan) -> dict[str, str]:
    """By arm, who the endpoint says owns the model. Raises EndpointError where it is not served."""
    return {arm.name: await _owner(http, arm, plan.model) for arm in plan.arms}


def provenance(owned_by: Mapping[str, str]) -> Provenance:
    """`measured` only if no arm says of itself that its timings come from a model."""
    emulated = any(owner.lower().startswith("emulat") for owner in owned_by.values())
    return "emulated" if emulated else "measured"


async def _owner(http: aiohttp.ClientSession, arm: Arm, model: str) -> str:
    where = f"{arm.name}: {arm.url}/models"
    remedy = f"is this its address? --arm {arm.name}=URL names another"
    try:
        async with http.get(f"{arm.url}/models", timeout=_TIMEOUT) as response:
            if response.status != 200:
                raise EndpointError(f"{where}: answered HTTP {response.status}; {remedy}")
            content = await response.json(content_type=None)
        served = {entry["id"]: str(entry.get("owned_by", "")) for entry in content["data"]}
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        why = one_line(str(error)) or "no answer in 15 s"
        raise EndpointError(f"{where}: {why}; is it up, and {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EndpointError(f"{where}: answered no list of models; {remedy}") from error
    if model not in served:
        has = ", ".join(served) or "nothing"
        raise EndpointError(f"{where}: serves {has}, not {model!r}; correct the plan's model or the arm")
    return served[model]
