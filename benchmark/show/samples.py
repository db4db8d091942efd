"""Answers of two arms to the same prompt, side by side: what was compared, and where texts part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmark.analyse.comparison import pairs_of
from benchmark.analyse.equality import first_difference
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.plan import Prompt

MOST_CHARS = 600
"""Of a text on the page; the journal has all of it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One arm's text, cut in two where it leaves the baseline's."""

    arm: str
    same: str
    different: str
    cut: bool
    """Whether the page shows the beginning only."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt and what the arms made of it."""

    class_: str
    prompt_id: str
    prompt: str
    """Empty where the plan does not have it: an import."""
    answers: tuple[Answer, ...]
    equal: bool


def samples(raw: RawRun) -> list[Sample]:
    """One pair for each class and treatment: the first whose texts differ, else the first."""
    plan = raw.plan
    prompts = {prompt.id: _prompt_text(prompt) for prompt in plan.prompts}
    written: dict[tuple[str, str], list[RequestRecord]] = {}
    for record in raw.requests:
        if record.phase == "measured" and record.text is not None:
            written.setdefault((record.arm, record.class_), []).append(record)
    found = []
    for class_, arm in product(plan.classes, plan.arms):
        if arm.name == plan.baseline:
            continue
        pairs = pairs_of(written.get((plan.baseline, class_), ()), written.get((arm.name, class_), ()))
        if pairs:
            base, treated = next((p for p in pairs if p[0].text != p[1].text), pairs[0])
            found.append(_sample(prompts.get(base.prompt_id, ""), base, treated))
    return found


def _sample(prompt: str, base: RequestRecord, treated: RequestRecord) -> Sample:
    """Both texts from one place on, so that the place where they part is in them."""
    texts = (base.text or "", treated.text or "")
    equal, shared = texts[0] == texts[1], first_difference(*texts)
    begin = 0 if equal else max(0, shared - MOST_CHARS // 2)
    end, lead = begin + MOST_CHARS, "… " if begin else ""
    return Sample(
        class_=base.class_,
        prompt_id=base.prompt_id,
        prompt=prompt if len(prompt) <= MOST_CHARS else f"{prompt[:MOST_CHARS]} …",
        answers=tuple(
            Answer(
                arm=record.arm,
                same=lead + text[begin : min(shared, end)],
                different=text[shared : max(shared, end)],
                cut=len(text) > end,
            )
            for record, text in zip((base, treated), texts, strict=True)
        ),
        equal=equal,
    )


def _prompt_text(prompt: Prompt) -> str:
    if prompt.messages is None:
        return prompt.prompt or ""
    return "\n".join(f"{said.get('role')}: {_plain_text(said.get('content'))}" for said in prompt.messages)


def _plain_text(content: Any) -> str:
    return content if isinstance(content, str) else "(content that is no plain text)"
