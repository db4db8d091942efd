"""What the command line changes about a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmark.errors import PlanError

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun
    from benchmark.plan import Plan

_OPTIONS = {
    "url": "--arm",
    "speculative_tokens": "--speculative-tokens",
    "max_tokens_per_step": "--tokens-per-step",
    "usd_per_hour": "--usd-per-hour",
}


def overridden(
    plan: Plan,
    of_arms: Mapping[str, Mapping[str, Any]],
    *,
    classes: Collection[str] | None = None,
    **settings: Any,
) -> Plan:
    """The plan with other values: `of_arms` by field and arm, `settings` by field, where None leaves the plan's.

    Raises PlanError for an arm or a class that it does not have, and for values that no plan may have.
    """
    from benchmark.plan import from_dict

    given = {field: value for field, value in settings.items() if value is not None}
    names = [arm.name for arm in plan.arms]
    for field, by_arm in of_arms.items():
        _known(_OPTIONS[field], by_arm, names)
    _known("--baseline", [given["baseline"]] if "baseline" in given else (), names)
    _known("--classes", classes or (), plan.classes)
    if "concurrency" in given:  # the one kind of load replaces the other
        given["rate"] = []
    if "duration_s" in given:  # and a duration a number of rounds
        given["rounds"] = 1
    elif "rounds" in given:
        given["duration_s"] = None
    content = plan.to_dict() | given
    for arm in content["arms"]:
        arm |= {field: by_arm[arm["name"]] for field, by_arm in of_arms.items() if arm["name"] in by_arm}
    content["prompts"] = [one for one in content["prompts"] if not classes or one["class"] in classes]
    for prompt in content["prompts"]:
        if "max_tokens" in prompt:  # the option is also the ceiling of what single prompts ask for
            prompt["max_tokens"] = min(prompt["max_tokens"], given.get("max_tokens", prompt["max_tokens"]))
    return from_dict(content)


def _known(option: str, given: Collection[str], names: Collection[str]) -> None:
    for name in given:
        if name not in names:
            raise PlanError(f"{option}: {name!r} is not in the plan; it has {', '.join(names)}")


def declared(raw: RawRun, of_arms: Mapping[str, Mapping[str, Any]]) -> RawRun:
    """`raw` with what its run was not told about arms; k drafts yield k + 1 tokens unless said. Raises PlanError."""
    if not any(of_arms.values()):
        return raw
    assumed = {name: k + 1 for name, k in of_arms["speculative_tokens"].items()}
    per_step = {**assumed, **of_arms["max_tokens_per_step"]}
    changed = overridden(raw.plan, {**of_arms, "max_tokens_per_step": per_step})
    last = replace(raw.sittings[-1], plan=changed)
    return replace(raw, sittings=(*raw.sittings[:-1], last))
