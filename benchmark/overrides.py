"""What the command line changes about a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmark.errors import PlanError
from benchmark.measure.journal import RawRun
from benchmark.plan import Arm, Plan, Prompt
from benchmark.plan_file import from_dict

_AS_GIVEN = (
    "model",
    "baseline",
    "requests",
    "warmup",
    "max_tokens",
    "seed",
    "simultaneous",
    "ignore_eos",
    "extra_body",
    "slo",
)


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """None, or nothing for an arm, leaves the plan's value."""

    urls: Mapping[str, str] = field(default_factory=dict)
    speculative_tokens: Mapping[str, int] = field(default_factory=dict)
    tokens_per_step: Mapping[str, int] = field(default_factory=dict)
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    model: str | None = None
    baseline: str | None = None
    classes: tuple[str, ...] | None = None
    concurrency: tuple[int, ...] | None = None
    rate: tuple[float, ...] | None = None
    requests: int | None = None
    rounds: int | None = None
    duration_s: float | None = None
    warmup: int | None = None
    max_tokens: int | None = None
    """Also the ceiling of what single prompts ask for."""
    seed: int | None = None
    simultaneous: bool | None = None
    ignore_eos: bool | None = None
    extra_body: Mapping[str, Any] | None = None
    slo: Mapping[str, float] | None = None


def overridden(plan: Plan, overrides: Overrides) -> Plan:
    """The plan with `overrides` applied. Raises PlanError for an arm or a class that it does not have, and for values
    that no plan may have."""
    names = [arm.name for arm in plan.arms]
    _known("--arm", overrides.urls, names)
    _known("--speculative-tokens", overrides.speculative_tokens, names)
    _known("--tokens-per-step", overrides.tokens_per_step, names)
    _known("--usd-per-hour", overrides.usd_per_hour, names)
    _known("--baseline", () if overrides.baseline is None else (overrides.baseline,), names)
    _known("--classes", overrides.classes or (), plan.classes)
    chosen = set(overrides.classes or plan.classes)
    given = {name: value for name in _AS_GIVEN if (value := getattr(overrides, name)) is not None}
    changed = replace(
        plan,
        arms=tuple(_arm(arm, overrides) for arm in plan.arms),
        prompts=tuple(_capped(p, overrides.max_tokens) for p in plan.prompts if p.class_ in chosen),
        **given,
        **_loads(overrides),
        **_extent(overrides),
    )
    return from_dict(changed.to_dict())


def _loads(overrides: Overrides) -> dict[str, Any]:
    """The one kind of load replaces the other."""
    if overrides.rate is not None:
        return {"rate": overrides.rate}
    return {} if overrides.concurrency is None else {"concurrency": overrides.concurrency, "rate": ()}


def _extent(overrides: Overrides) -> dict[str, Any]:
    """A duration replaces a number of rounds, and the other way round."""
    if overrides.duration_s is not None:
        return {"duration_s": overrides.duration_s, "rounds": 1}
    return {} if overrides.rounds is None else {"rounds": overrides.rounds, "duration_s": None}


def _arm(arm: Arm, overrides: Overrides) -> Arm:
    return replace(
        arm,
        url=overrides.urls.get(arm.name, arm.url),
        speculative_tokens=overrides.speculative_tokens.get(arm.name, arm.speculative_tokens),
        max_tokens_per_step=overrides.tokens_per_step.get(arm.name, arm.max_tokens_per_step),
        usd_per_hour=overrides.usd_per_hour.get(arm.name, arm.usd_per_hour),
    )


def _capped(prompt: Prompt, limit: int | None) -> Prompt:
    if limit is None or prompt.max_tokens is None:
        return prompt
    return replace(prompt, max_tokens=min(limit, prompt.max_tokens))


def _known(option: str, given: Collection[str], names: Collection[str]) -> None:
    for name in given:
        if name not in names:
            raise PlanError(f"{option}: {name!r} is not in the plan; it has {', '.join(names)}")


def declared(
    raw: RawRun,
    *,
    speculative_tokens: Mapping[str, int],
    tokens_per_step: Mapping[str, int],
    usd_per_hour: Mapping[str, float],
) -> RawRun:
    """`raw` with what its run was not told about arms; k drafts yield k + 1 tokens unless said. Raises PlanError."""
    if not (speculative_tokens or tokens_per_step or usd_per_hour):
        return raw
    assumed = {name: k + 1 for name, k in speculative_tokens.items()}
    changed = overridden(
        from_dict(raw.plan),
        Overrides(
            speculative_tokens=speculative_tokens,
            tokens_per_step={**assumed, **tokens_per_step},
            usd_per_hour=usd_per_hour,
        ),
    )
    last = replace(raw.sittings[-1], plan=changed.to_dict())
    return replace(raw, sittings=(*raw.sittings[:-1], last))
