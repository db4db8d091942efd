"""The questions to servers before and after the load.

Before the load: the sanity check of the baseline (`benchmark.measure.sanity_check`). After the load, if greedy answers differ: both
servers are asked for log-probabilities at the difference (`benchmark.measure.divergence`), and some requests to the baseline are
repeated, which shows how often it differs from itself. Each answer is recorded when it arrives, and is not asked for again. A
server that refuses or stops here only affects these files, not the run.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from benchmark.errors import EndpointError
from benchmark.measure import divergence, sanity_check
from benchmark.measure.client import (
    Failure,
    ask,
    ask_whole,
    hidden,
    http_session,
    one_line,
    request_body,
    request_path,
)
from benchmark.measure.divergence import Again, Asked, Case, Line
from benchmark.measure.endpoints import Endpoint
from benchmark.measure.journal import Journal, RawRun
from benchmark.measure.loader import together
from benchmark.measure.progress import Progress
from benchmark.measure.records import RequestRecord
from benchmark.measure.schedule import asked_as
from benchmark.plan import Plan
from core.words import count

_Line = TypeVar("_Line", bound=Line)
MAX_CASES, REPEATS = 64, 32
"""The maximum number of differing pairs that are examined, and of repeated requests to the baseline; chosen at random."""
_MAX_TOKENS = 256
"""The maximum tokens of an answer to a simple question: enough for a model that reasons first, and to detect a loop."""
_INSTRUCTION = "Answer with one word or number only."
_CONCURRENCY = 4
_BETWEEN_WORDS = re.compile(r"(?<=\w) (?=\w)")
"""A place at which tokenizers begin a new token."""
_MAX_REWRITTEN_CHARS = 48
"""The maximum number of characters before a difference that a server writes again."""


async def check_sense(
    http: aiohttp.ClientSession,
    plan: Plan,
    served: Mapping[str, Endpoint],
    *,
    out: Path,
    progress: Progress,
    wanted: bool,
) -> None:
    """Ask the baseline the simple questions without an answer in `out`, and print how many it answers correctly.

    Questions are sent one after the other, so that answers do not depend on a batch, and decoding is greedy. Of the plan's
    `extra_body` only the chat template is used, because the rest may force the form of an answer. Raises StorageError.
    """
    if reason := _skipped(plan, served, wanted=wanted):
        progress.tell(f"sense check skipped: {reason}")
        return
    arm, sha = plan.arm(plan.baseline), plan.sha256()
    template = {key: value for key, value in plan.extra_body.items() if key == "chat_template_kwargs"}
    asked = {"model": plan.model, "stream": True, "temperature": 0, "max_tokens": _MAX_TOKENS, **template}
    known = {answer.question: answer for answer in sanity_check.read(out, sha)}
    with Journal(out, sanity_check.FILE_NAME) as book:
        for question in (question for question in sanity_check.QUESTIONS if question.text not in known):
            messages = [{"role": "user", "content": f"{question.text} {_INSTRUCTION}"}]
            body = json.dumps(asked | {"messages": messages, "stream_options": {"include_usage": True}})
            now = round(time.time(), 3)
            result = await ask(http, f"{arm.url}/chat/completions", body.encode(), max_tokens=_MAX_TOKENS)
            answer = known[question.text] = sanity_check.Answer(
                plan_sha256=sha,
                arm=arm.name,
                question=question.text,
                accepted=question.accepted,
                asked_unix_s=now,
                text=None if isinstance(result, Failure) else result.text,
                error=result.name if isinstance(result, Failure) else None,
                message=result.message if isinstance(result, Failure) else None,
            )
            book.append(answer)
    if outcome := sanity_check.outcome(list(known.values())):
        if outcome["withheld"]:
            remedy = "this run gets no verdict. --no-sense-check skips the questions"
            progress.warn(f"{outcome['text']}; {remedy}")
        else:
            progress.tell(f"sense check: {outcome['text']}")


def _skipped(plan: Plan, served: Mapping[str, Endpoint], *, wanted: bool) -> str:
    """Why the sanity check is skipped; empty if it is not."""
    if not wanted:
        return "--no-sense-check was given"
    if any(endpoint.emulated for endpoint in served.values()):
        return "the endpoints are emulated, and their answers mean nothing"
    if all(prompt.messages is None for prompt in plan.prompts):
        return "the plan's prompts are raw text, not messages: a base model does not answer questions"
    return ""


async def look_closer(
    raw: RawRun,
    *,
    out: Path,
    timeout_s: float,
    progress: Progress,
    maximum: int = MAX_CASES,
    repeats: int = REPEATS,
    limit_s: float = 600.0,
) -> RawRun:
    """Examine differing answers that are not examined in `out` yet, for at most `limit_s`; returns the run with the results. Nothing is
    asked if all answers are equal or decoding is not greedy.

    Raises StorageError, and ResultsError if another process does the same.
    """
    plan, requests = raw.plan, raw.by_nodes.requests
    differing = list(divergence.cases(requests, (), plan))
    if not differing or not plan.greedy:
        return raw
    known = {line.key: line for line in raw.closer_look}
    progress.tell(
        f"answers differ in {count(len(differing), 'pair')}; looking at them for {limit_s:.0f} s at most"
    )
    again = "repeat the command to continue"
    try:
        with Journal(out, divergence.FILE_NAME) as book:
            async with asyncio.timeout(limit_s), http_session(timeout_s) as http:
                look = _Look(plan, raw.sessions[0].run, http, book, known, random.Random(plan.seed))
                await look.at(differing, maximum)
                await look.repeat(requests, repeats)
                cases = divergence.cases(requests, known.values(), plan)
                await look.at([case for case in cases if case.treatment == plan.baseline], maximum)
    except TimeoutError:
        progress.warn(f"stopped looking at differing answers after {limit_s:.0f} s; {again}")
    except EndpointError as error:
        progress.warn(f"{error}; not all differing answers were looked at, {again}")
    return replace(raw, closer_look=tuple(known.values()))


@dataclass(frozen=True)
class _Look:
    plan: Plan
    run: str
    http: aiohttp.ClientSession
    book: Journal
    known: dict[tuple[object, ...], Line]
    chance: random.Random

    async def at(self, cases: Sequence[Case], maximum: int) -> None:
        """Examine the cases."""
        await _in_turn(self.chance.sample(cases, min(maximum, len(cases))), self._case, _CONCURRENCY)

    async def repeat(self, requests: Iterable[RequestRecord], maximum: int) -> None:
        """Repeat some requests to the baseline, under the load that they had."""
        answers = list(divergence.answers_of(self.plan.baseline, requests).values())
        chosen = self.chance.sample(answers, min(maximum, len(answers)))
        for load in self.plan.loads:
            of_load = [record for record in chosen if record.load == load]
            await _in_turn(of_load, self._again, load.concurrency or _CONCURRENCY)

    async def _again(self, record: RequestRecord) -> None:
        line = Again(run=self.run, pair_id=record.pair_id, started_unix_s=round(time.time(), 3))
        if line.key in self.known:
            return
        pair = asked_as(self.plan, record)
        url, maximum = self.plan.arm(record.arm).url + request_path(pair), self.plan.answer_limit(pair.prompt)
        result = await ask(self.http, url, request_body(self.plan, pair), max_tokens=maximum)
        names = ("text", "completion_tokens", "cached_tokens")
        self._keep(
            line,
            result if isinstance(result, Failure) else {name: getattr(result, name) for name in names},
        )

    async def _case(self, case: Case) -> None:
        """Ask from shortly before the difference. If that does not show a near-tie, ask from the beginning of the answer, because given text
        can be tokenized differently from written text."""
        share = case.common / max(len(case.text), 1)
        whole = int(1.5 * share * (case.ours.completion_tokens or len(case.text))) + 32
        whole = min(whole, self.plan.answer_limit(asked_as(self.plan, case.ours).prompt))
        start = beginning(case.text, case.common)
        ways = [(start, case.common - start + 1), (0, whole)]
        for given, max_tokens in ways if start else ways[1:]:
            ours, theirs = await self._asked(case, case.ours.arm, given, max_tokens), None
            if case.treatment != case.ours.arm and not (ours.error or divergence.unreal(ours.steps)):
                theirs = await self._asked(case, case.treatment, given, max_tokens)
            verdict = divergence.judge(case, ours, theirs)
            if verdict.name == "near-tie" or verdict.why in divergence.UNREAL:
                return

    async def _asked(self, case: Case, arm: str, given: int, max_tokens: int) -> Asked:
        line = Asked(
            run=self.run,
            pair_id=case.ours.pair_id,
            treatment=case.treatment,
            arm=arm,
            given=given,
            max_tokens=max_tokens,
            started_unix_s=round(time.time(), 3),
        )
        if isinstance(known := self.known.get(line.key), Asked):
            return known
        pair = asked_as(self.plan, case.ours)
        body = question(request_body(self.plan, pair), case.text[:given], max_tokens)
        url = self.plan.arm(arm).url + request_path(pair)
        answer = await ask_whole(self.http, url, body, max_tokens=max_tokens)
        if not isinstance(answer, Failure):
            try:
                answer = {"steps": _without_key(divergence.steps_of(answer))}
            except ValueError as error:
                answer = Failure("malformed", one_line(str(error)))
        return self._keep(line, answer)

    def _keep(self, line: _Line, answer: Failure | dict[str, Any]) -> _Line:
        """Record the line with its answer. If the server cannot be reached, raises EndpointError and records nothing, because it may come back."""
        if isinstance(answer, Failure):
            if answer.name.startswith("connect_"):
                raise EndpointError(f"{answer.name}: {answer.message}")
            answer = {"error": answer.name, "message": answer.message}
        line = replace(line, **answer)
        self.known[line.key] = line
        self.book.append(line)
        return line


def _without_key(steps: tuple[divergence.WrittenToken, ...]) -> tuple[divergence.WrittenToken, ...]:
    """The steps. Raises ValueError if they contain the API key, also over several tokens."""
    text = "\n".join(
        ["".join(token for token, _, _ in steps), *(token for _, _, top in steps for token in top)]
    )
    if hidden(text) != text:
        raise ValueError("the answer repeats the API key")
    return steps


def beginning(text: str, common: int) -> int:
    """The number of characters of an answer to give, so that its last words before `common` are written again; 0 if there is no suitable
    place."""
    places = [match.start() for match in _BETWEEN_WORDS.finditer(text[:common])][-2:]
    return places[0] if len(places) == 2 and common - places[0] <= _MAX_REWRITTEN_CHARS else 0


def question(body: bytes, given: str, max_tokens: int) -> bytes:
    """The request `body` of the load, with log-probabilities, without a stream, and continuing after the text `given` of its answer.

    A chat is continued with vLLM's `continue_final_message`. A server that does not know it writes something else, which is
    detected.
    """
    content = json.loads(body)
    for key in ("stream_options", "max_completion_tokens", "min_tokens"):
        content.pop(key, None)
    content |= {"stream": False, "max_tokens": max_tokens}
    if "prompt" in content:
        content |= {"prompt": content["prompt"] + given, "logprobs": divergence.MAX_LISTED}
    else:
        content |= {"logprobs": True, "top_logprobs": divergence.MAX_LISTED}
        if given:
            content["messages"] = [*content["messages"], {"role": "assistant", "content": given}]
            content |= {"add_generation_prompt": False, "continue_final_message": True}
    return json.dumps(content).encode()


async def _in_turn(items: Iterable[Any], do: Callable[[Any], Awaitable[None]], concurrency: int) -> None:
    """Call `do` for each item, at most `concurrency` at a time."""
    waiting = iter(items)

    async def slot() -> None:
        for item in waiting:
            await do(item)

    async with together() as tasks:
        for _ in range(concurrency):
            tasks.create_task(slot())
