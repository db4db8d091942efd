"""The account of a rehearsal as plain text: at most 40 lines of at most 100 columns, whatever the assembly's size."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from lab.aws.moto_models import Outcome
from lab.aws.readback import ReadBack
from lab.aws.rehearsal import Rehearsal

_COLUMNS = 100
_LABEL_COLUMNS = 14
_STACK_LINES = 8
_TOGETHER = "\N{NO-BREAK SPACE}"
"""Between words that must not be parted; an ordinary space in what is returned."""


def account_lines(rehearsal: Rehearsal) -> tuple[str, ...]:
    """Per stack what became of its resources, what was read back, and what the rehearsal cannot show."""
    where = f"{len(rehearsal.stacks)} stacks in {rehearsal.region}, account {rehearsal.account}"
    return (
        _shortened(f"Rehearsal of {where}: moto on loopback, nothing on AWS.", _COLUMNS),
        *_stack_lines(rehearsal),
        "Read back:",
        *_fact_lines(rehearsal.facts, rehearsal.bounded_roles),
        "What it cannot show:",
        *_limit_lines(rehearsal),
    )


def _stack_lines(rehearsal: Rehearsal) -> Iterator[str]:
    def row(name: str, counts: Iterable[int]) -> str:
        created, recorded, absent, skipped = counts
        text = f"  {_shortened(name, 36):<36} created {created:>3}, recorded {recorded:>3}, not modelled {absent:>3}"
        return text + (f", skipped {skipped}" if skipped else "")

    shown = rehearsal.stacks[:_STACK_LINES]
    for stack in shown:
        yield row(stack, (rehearsal.count(stack, outcome) for outcome in Outcome))
    left = len(rehearsal.stacks) - len(shown)
    totals = [sum(rehearsal.count(stack, outcome) for stack in rehearsal.stacks) for outcome in Outcome]
    yield row(f"all {len(rehearsal.stacks)}" + (f" ({left} not shown)" if left else ""), totals)


def _fact_lines(facts: ReadBack, roles: int) -> Iterator[str]:
    yield from _each("cluster", facts.clusters, items=2, lines=2)
    yield from _each("nodes", facts.node_groups, items=2, lines=2)
    yield from _folded("buckets", f"{len(facts.buckets)}: {', '.join(facts.buckets)}", lines=2)
    dashboards = [f"{name}, {len(body):,} characters of body" for name, body in facts.dashboards.items()]
    yield from _folded("dashboards", f"{len(dashboards)}: {'; '.join(dashboards)}", lines=1)
    if facts.alarms:
        yield from _folded("alarms", f"{len(facts.alarms)}: {', '.join(facts.alarms)}", lines=1)
    if facts.schedules:
        times = ", ".join(sorted(set(facts.schedules.values())))
        yield from _folded("schedules", f"{len(facts.schedules)}: {times}", lines=1)
    kinds = Counter(str(one.get("kind", "?")) for one in facts.objects)
    text = f"{len(facts.objects)} objects, recorded: {_counted(dict(sorted(kinds.items())))}"
    yield from _folded("manifests", text, lines=3)
    yield from _each("helm", tuple(f"{one}, recorded" for one in facts.helm_releases), items=2)
    if roles:
        text = f"{roles} asked: the committed execution policy and boundary, where docs/pipeline.md puts them"
        yield from _folded("roles", text, lines=1)


def _limit_lines(rehearsal: Rehearsal) -> Iterator[str]:
    recorded = _counted(rehearsal.types(Outcome.RECORDED))
    absent = _counted(rehearsal.types(Outcome.NOT_MODELLED))
    yield from _folded("recorded only", recorded or "nothing", lines=3)
    yield from _folded("not modelled", absent or "nothing", lines=3)
    if rehearsal.unresolved:
        yield from _folded("unresolved", "; ".join(rehearsal.unresolved), lines=2)
    code, images = len(rehearsal.placeholders), len(rehearsal.images)
    published = sum(size for _, size in rehearsal.published)
    text = f"{code} placeholders for Lambda code, which nothing invokes; {images} container images not built"
    if published:
        text = (
            f"{len(rehearsal.published)} published ({published / 1e6:.0f} MB), of which nothing is invoked; "
            f"{images} container images not built"
        )
    yield from _folded("assets", text, lines=1)
    if rehearsal.stages:
        stages = ", ".join(rehearsal.stages)
        yield from _folded("left out", f"stages that a pipeline deploys: {stages}", lines=1)


def _each(label: str, texts: tuple[str, ...], *, items: int, lines: int = 1) -> Iterator[str]:
    """As many `lines` for each; beyond so many `items` the rest is counted."""
    if not texts:
        yield from _folded(label, "none", lines=1)
    shown = texts if len(texts) <= items else texts[: items - 1]
    for text in shown:
        yield from _folded(label, text, lines=lines)
    if len(shown) < len(texts):
        yield from _folded(label, f"and {len(texts) - len(shown)} more", lines=1)


def _folded(label: str, text: str, *, lines: int) -> list[str]:
    wrapped = textwrap.wrap(
        text,
        width=_COLUMNS,
        initial_indent=f"  {label:<{_LABEL_COLUMNS}}",
        subsequent_indent=" " * (2 + _LABEL_COLUMNS),
        max_lines=lines,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return [line.replace(_TOGETHER, " ") for line in wrapped]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count}{_TOGETHER}{name}" for name, count in counts.items())


def _shortened(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 3] + "..."
