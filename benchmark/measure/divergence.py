"""The first difference of two greedy answers to one prompt, and its verdict from the log-probabilities of the baseline: near-tie, fault,
or cannot tell. docs/losslessness.md has the reasons.

`divergence.jsonl`, in the folder of `requests.jsonl`, has the requests for this after the load. There are two kinds of lines: `again`,
the second answer of the baseline to one of its requests; `asked`, tokens of an answer with their log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from benchmark.measure.records import Moment, Name, Ordinal, RequestRecord, RunId, Text, answers_in, reader
from benchmark.plan import Plan

FILE_NAME = "divergence.jsonl"
MARGIN_NATS = 0.5
"""Two tokens are a near-tie if the log-probability of neither is further than this below that of the most likely token.

Four steps of bfloat16 at logits from 16 to 32, where its 8 significant bits leave steps of 0.125; differences of logits are
differences of log-probabilities. Measured on the lab's target, whose steps are 0.03: answers in bfloat16 and in float32
differ within four steps too (docs/losslessness.md).
"""
MAX_LISTED = 20
"""The number of tokens that are requested at each position: the maximum of OpenAI's chat and, by default, of vLLM."""
UNREAL = NONE_GIVEN, DUMMY, NOT_GREEDY = (
    "no log-probabilities",
    "dummy log-probabilities",
    "the server did not take its most likely token",
)
_ROUNDING = 0.01
"""The tolerance for rounding: of the sum of listed probabilities above 1, and of the written token below the most likely one."""

Logprob = Annotated[float, Field(allow_inf_nan=False)]
Token = Annotated[str, Field(max_length=2000)]


class WrittenToken(NamedTuple):
    """One token that a server wrote."""

    token: Token
    logprob: Logprob | None
    top: Annotated[Mapping[Token, Logprob], Field(max_length=64)]
    """The most likely tokens at this position, and the written one."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The common fields of all lines: the pair, and the error if the server did not answer."""

    run: RunId
    pair_id: Name
    started_unix_s: Moment
    error: Name | None = None
    message: Text | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the question."""
        return (self.pair_id,)


@dataclass(frozen=True, kw_only=True)
class Again(Line):
    """The second answer of the baseline to a request."""

    text: Text | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asked(Line):
    """The tokens of a server with their log-probabilities."""

    treatment: Name
    """The arm whose answer differs from that of the baseline; the baseline itself, if its second answer differs."""
    arm: Name
    """The arm that was asked."""
    given: Annotated[int, Field(ge=0)]
    """The number of characters of the answer in the request; 0 asks for the answer from its beginning."""
    max_tokens: Ordinal
    steps: tuple[WrittenToken, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        return (self.pair_id, self.treatment, self.arm, self.given > 0)


def read(folder: Path, run: str) -> tuple[Line, ...]:
    """The lines in `folder` for `run`, each question once. Raises ResultsError."""
    kinds: dict[str, type[Line]] = {"again": Again, "asked": Asked}
    return answers_in(folder / FILE_NAME, kinds, lambda line: line.run == run)


def steps_of(answer: Any) -> tuple[WrittenToken, ...]:
    """The steps of a completion or a chat completion; empty without log-probabilities. Raises ValueError."""
    try:
        listed = answer["choices"][0].get("logprobs") or {}
        rows = [
            (s["token"], s["logprob"], _listed(s.get("top_logprobs"))) for s in listed.get("content") or ()
        ]
        if tokens := listed.get("tokens"):
            tops = listed.get("top_logprobs") or [None] * len(tokens)
            rows = list(zip(tokens, listed["token_logprobs"], map(_listed, tops), strict=True))
        content = [(t, p, top if p is None else {**top, t: p}) for t, p, top in rows]
        steps: tuple[WrittenToken, ...] = reader(tuple[WrittenToken, ...]).validate_python(content)
        return steps
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"not log-probabilities: {str(error).splitlines()[0]}") from error


def _listed(top: Any) -> dict[str, Any]:
    """The log-probability by token. A chat has them as a list of objects, a completion as one object."""
    return {entry["token"]: entry["logprob"] for entry in top} if isinstance(top, list) else dict(top or {})


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two different answers to one request."""

    ours: RequestRecord
    """The request of the baseline."""
    theirs: str
    treatment: str

    @property
    def text(self) -> str:
        """The answer of the baseline."""
        return self.ours.text or ""

    @property
    def common(self) -> int:
        """The number of characters that are equal at the beginning of both."""
        return first_difference(self.text, self.theirs)


def answers_of(arm: str, requests: Iterable[RequestRecord]) -> dict[str, RequestRecord]:
    """The measured answers of an arm by pair."""
    mine = (record for record in requests if record.arm == arm and record.phase == "measured")
    return {record.pair_id: record for record in mine if record.error is None and record.text is not None}


def is_pair(ours: RequestRecord, theirs: RequestRecord) -> bool:
    """Whether two arms were asked the same under the same start of the servers, which another node is too (`RawRun.by_nodes`)."""
    return (ours.nonce, ours.start) == (theirs.nonce, theirs.start)


def cases(requests: Sequence[RequestRecord], lines: Iterable[Line], plan: Plan) -> Iterator[Case]:
    """Cases in which a treatment differs from its baseline, then cases in which the plan's baseline differs from itself."""
    baselines = plan.baselines
    for arm in dict.fromkeys(record.arm for record in requests if baselines[record.arm] != record.arm):
        ours = answers_of(baselines[arm], requests)
        for pair, other in answers_of(arm, requests).items():
            if pair in ours and is_pair(ours[pair], other) and ours[pair].text != other.text:
                yield Case(ours=ours[pair], theirs=other.text or "", treatment=arm)
    first = answers_of(plan.baseline, requests)
    for line in (line for line in lines if line.pair_id in first):
        if isinstance(line, Again) and line.text not in (None, first[line.pair_id].text):
            yield Case(ours=first[line.pair_id], theirs=line.text or "", treatment=plan.baseline)


def first_difference(text: str, other: str) -> int:
    """The index of the first different character of two texts; the length of the shorter text if the longer one only continues it."""
    for index, (left, right) in enumerate(zip(text, other, strict=False)):
        if left != right:
            return index
    return min(len(text), len(other))


@dataclass(frozen=True)
class Verdict:
    """The verdict about a case."""

    name: Literal["near-tie", "fault", "cannot tell"]
    why: str = ""
    """The reason, if the run cannot tell."""
    gap_nats: float | None = None
    """The distance of the less likely of the two tokens from the most likely token, or a lower bound of it."""
    tokens: tuple[str, str | None] | None = None
    """The token of the baseline and that of the other arm; None if not listed."""


def verdict(case: Case, lines: Iterable[Line]) -> Verdict:
    """The verdict from all answers: a near-tie if one answer shows a near-tie, else a fault if one shows a fault."""
    best = Verdict("cannot tell", "not asked")
    asked = [
        a
        for a in lines
        if isinstance(a, Asked) and (a.treatment, a.pair_id) == (case.treatment, case.ours.pair_id)
    ]
    for ours in (a for a in asked if a.arm == case.ours.arm):
        theirs = [a for a in asked if a.arm != ours.arm and (a.given > 0) == (ours.given > 0)]
        shown = judge(case, ours, theirs[0] if theirs else None)
        if shown.name == "near-tie":
            return shown
        best = best if best.name == "fault" else shown
    return best


def judge(case: Case, ours: Asked, theirs: Asked | None = None) -> Verdict:
    """The verdict from one answer of the baseline's server and that of the other arm's server to the same question."""
    if ours.error:
        return Verdict("cannot tell", f"no answer ({ours.error})")
    if (place := _place(case, ours)) is None:
        return Verdict(
            "cannot tell", unreal(ours.steps) or "the baseline did not write the common text again"
        )
    index, at = place
    if reason := unreal(ours.steps[: index + 1]):
        return Verdict("cannot tell", reason)
    step, own = ours.steps[index], None
    if theirs and len(theirs.steps) > index:
        if any(a.token != b.token for a, b in zip(ours.steps[:index], theirs.steps, strict=False)):
            return Verdict("cannot tell", "the two answers are cut into different tokens")
        own = theirs.steps[index].token
    mine = _taken(case.text[at:], case.theirs[at:], step.token, step)
    other = _taken(case.theirs[at:], case.text[at:], own, step)
    if mine is None or mine == other or (other is None and not case.theirs[at:]):
        return Verdict("cannot tell", "which tokens were taken is not known")
    gap = max(_behind(step, mine), _behind(step, other))
    if theirs and own == other and own not in step.top:  # only its own server has its probability
        taken = theirs.steps[index]
        gap = max(gap, 0 if unreal([taken]) in (DUMMY, NONE_GIVEN) else _behind(taken, own))
    if gap > MARGIN_NATS:
        return Verdict("fault", "", gap, (mine, other))
    if other not in step.top:
        return Verdict("cannot tell", "the other's token is not among the most likely ones")
    return Verdict("near-tie", "", gap, (mine, other))


def _behind(step: WrittenToken, token: str | None) -> float:
    """The distance of a token from the most likely one; for a token that is not listed, a lower bound."""
    minimum = min(step.top.values())
    return max(step.top.values()) - step.top.get(token or "", minimum)


def unreal(steps: Sequence[WrittenToken]) -> str:
    """The reason why these are not log-probabilities of a greedy choice; empty if they are.

    vLLM's fork for Neuron returns the number of the token instead; other servers return zero or -9999 at every position.
    """
    for step in steps:
        values, maximum = step.top.values(), max(step.top.values(), default=0.0)
        if maximum > _ROUNDING or sum(map(math.exp, values)) > 1 + _ROUNDING:
            return DUMMY
        if step.logprob is None or len(values) < 2:
            return NONE_GIVEN
        if step.logprob < maximum - _ROUNDING:
            return NOT_GREEDY
    seen = {tuple(sorted(step.top.values())) for step in steps}
    if len(seen) == 1 and (len(steps) > 1 or len(set(*seen)) == 1):
        return DUMMY
    return "" if steps else NONE_GIVEN


def _place(case: Case, ours: Asked) -> tuple[int, int] | None:
    """The first step after the common text of both answers, as its index and its position in the text.

    None if the server wrote something else before that, or ended.
    """
    at = ours.given
    for index, step in enumerate(ours.steps):
        end = at + len(step.token)
        if case.text[at : min(end, case.common)] != step.token[: case.common - at]:
            return None
        if end > case.common:
            return index, at
        at = end
    return None


def _taken(rest: str, other: str, own: str | None, step: WrittenToken) -> str | None:
    """The token with which an answer continues as `rest`; None if unknown.

    It is the token that its own server wrote again; otherwise the longest listed token that matches.
    """
    if own and (rest.startswith(own) if rest else not other.startswith(own)):
        return own
    fits = (token for token in step.top if token and rest.startswith(token) and not other.startswith(token))
    return max(fits, key=len, default=None)
