"""Answers of two arms to the same prompt, side by side: what was compared, and where texts part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.plan import Plan, Prompt

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
    prompts = {prompt.id: prompt for prompt in plan.prompts}
    found = []
    for class_ in plan.classes:
        for arm in plan.arms:
            if arm.name == plan.baseline:
                continue
            pairs = list(_pairs(raw, plan, class_, arm.name))
            if pairs:
                base, treated = next((p for p in pairs if p[0].text != p[1].text), pairs[0])
                prompt = prompts.get(base.prompt_id)
                found.append(_sample("" if prompt is None else _prompt_text(prompt), base, treated))
    return found


def _pairs(
    raw: RawRun, plan: Plan, class_: str, treatment: str
) -> Iterator[tuple[RequestRecord, RequestRecord]]:
    """Answered pairs of a class, in the order in which the baseline was asked."""
    of: Mapping[str, dict[str, RequestRecord]] = {plan.baseline: {}, treatment: {}}
    for record in raw.requests:
        answered = record.phase == "measured" and record.error is None and record.text is not None
        if answered and record.class_ == class_ and record.arm in of:
            of[record.arm][record.pair_id] = record
    for pair_id, base in of[plan.baseline].items():
        if pair_id in of[treatment]:
            yield base, of[treatment][pair_id]


def _sample(prompt: str, base: RequestRecord, treated: RequestRecord) -> Sample:
    texts = (base.text or "", treated.text or "")
    shared = _shared(*texts)
    begin = 0 if texts[0] == texts[1] else max(0, shared - MOST_CHARS // 2)
    return Sample(
        class_=base.class_,
        prompt_id=base.prompt_id,
        prompt=_cut(prompt),
        answers=tuple(
            _answer(record.arm, text, begin, shared)
            for record, text in zip((base, treated), texts, strict=True)
        ),
        equal=texts[0] == texts[1],
    )


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    unequal = (index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return next(unequal, min(len(one), len(other)))


def _answer(arm: str, text: str, begin: int, shared: int) -> Answer:
    """The part of `text` from `begin` on, so that the place where the texts part is in it."""
    end = begin + MOST_CHARS
    lead = "… " if begin else ""
    return Answer(
        arm=arm,
        same=lead + text[begin : min(shared, end)],
        different=text[shared : max(shared, end)],
        cut=len(text) > end,
    )


def _prompt_text(prompt: Prompt) -> str:
    if prompt.messages is None:
        return prompt.prompt or ""
    return "\n".join(
        f"{message.get('role')}: {_content(message.get('content'))}" for message in prompt.messages
    )


def _content(content: Any) -> str:
    return content if isinstance(content, str) else "(content that is no plain text)"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} …"
