"""What a rehearsal came to, as plain text: in one line, and as an account as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

from core.screen import width
from core.words import count
from lab.aws.assembly import ACCOUNT
from lab.aws.moto_models import Outcome
from lab.aws.readback import ReadBack
from lab.aws.rehearsal import Rehearsal

_LABEL_COLUMNS = 14
_LINES = 3
"""Of one label; the rest is cut off."""


def in_one_line(rehearsal: Rehearsal) -> str:
    """What became of the resources, counted."""
    counts = Counter(one.outcome for one in rehearsal.resources)
    found = [
        f"{count(counts[Outcome.CREATED], 'resource')} created",
        f"{counts[Outcome.RECORDED]} without an emulator",
    ]
    if counts[Outcome.NOT_MODELLED]:
        found.append(f"{counts[Outcome.NOT_MODELLED]} not modelled")
    return f"rehearsed {count(len(rehearsal.stacks), 'stack')} against a local AWS: {', '.join(found)}"


def account_lines(rehearsal: Rehearsal) -> tuple[str, ...]:
    """Per stack what became of its resources, what was read back, and what the rehearsal cannot show."""
    where = f"{count(len(rehearsal.stacks), 'stack')} in {rehearsal.region}, account {ACCOUNT}"
    return (
        f"Rehearsal of {where}: moto on loopback, nothing on AWS.",
        *(_stack_line(rehearsal, stack) for stack in rehearsal.stacks),
        "Read back:",
        *_folded(_facts(rehearsal.facts, rehearsal.bounded_roles)),
        *_ends(rehearsal),
        "What it cannot show:",
        *_folded(_limits(rehearsal)),
    )


def _stack_line(rehearsal: Rehearsal, stack: str) -> str:
    counts = {outcome.value: rehearsal.count(stack, outcome) for outcome in Outcome}
    found = ", ".join(f"{name} {number:>3}" for name, number in counts.items() if number)
    return f"  {textwrap.shorten(stack, 36, placeholder='...'):<36} {found}"


def _facts(facts: ReadBack, roles: int) -> Iterator[tuple[str, str]]:
    yield from (("cluster", text) for text in facts.clusters)
    yield from (("nodes", text) for text in facts.node_groups)
    yield "buckets", f"{len(facts.buckets)}: {', '.join(facts.buckets)}"
    yield (
        "dashboards",
        "; ".join(f"{name}, {len(body):,} characters" for name, body in facts.dashboards.items()),
    )
    yield "alarms", f"{len(facts.alarms)}: {', '.join(facts.alarms)}"
    yield "schedules", f"{len(facts.schedules)}: {', '.join(sorted(set(facts.schedules.values())))}"
    kinds = Counter(str(one.get("kind", "?")) for one in facts.objects)
    yield (
        "manifests",
        f"{count(len(facts.objects), 'object')}, recorded: {_counted(dict(sorted(kinds.items())))}",
    )
    yield from (("helm", f"{release}, recorded") for release in facts.helm_releases)
    if roles:
        yield (
            "roles",
            f"{roles} asked: the committed execution policy and boundary, where docs/pipeline.md puts them",
        )


def _ends(rehearsal: Rehearsal) -> Iterator[str]:
    """The second deployment, and the account after the teardown against the account before."""
    if (told := rehearsal.remains) is None:
        return
    yield f"A second deployment changes nothing in {count(rehearsal.unchanged, 'stack')}."
    disturbed = ", ".join(told.disturbed) or "all as they were"
    yield f"After the teardown: {told.before} things were there before the deployment, {disturbed}."
    yield f"Left ({len(told.left)}):"
    yield from (f"  {one}" for one in told.left)


def _limits(rehearsal: Rehearsal) -> Iterator[tuple[str, str]]:
    yield "no emulator", _counted(rehearsal.types(Outcome.RECORDED))
    yield "not modelled", _counted(rehearsal.types(Outcome.NOT_MODELLED)) or "nothing"
    if rehearsal.unresolved:
        yield "unresolved", "; ".join(rehearsal.unresolved)
    code = f"{count(len(rehearsal.placeholders), 'placeholder')} for Lambda code"
    if rehearsal.published:
        megabytes = sum(size for _, size in rehearsal.published) / 1e6
        code = f"{len(rehearsal.published)} published ({megabytes:.0f} MB)"
    yield "assets", f"{code}, none of it invoked; {count(len(rehearsal.images), 'container image')} not built"
    if rehearsal.stages:
        yield "left out", f"stages that a pipeline deploys: {', '.join(rehearsal.stages)}"


def _folded(entries: Iterator[tuple[str, str]]) -> Iterator[str]:
    for label, text in entries:
        yield from textwrap.wrap(
            text or "none",
            width=width(),
            initial_indent=f"  {label:<{_LABEL_COLUMNS}}",
            subsequent_indent=" " * (2 + _LABEL_COLUMNS),
            max_lines=_LINES,
            placeholder=" ...",
            break_on_hyphens=False,
        )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
