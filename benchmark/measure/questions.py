"""What servers are asked beside the load, outside its times.

Before it: whether the baseline answers sensibly (`benchmark.measure.sanity_check`). After it, where greedy answers differ: both servers are asked for log-probabilities there
(`benchmark.measure.divergence`), and the baseline is asked some of its requests again, which shows how often it differs from
itself. Each answer is written down as it comes; what is there is not asked again. A server that refuses, breaks off or ends
here costs lines of these files and nothing of the run.
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
    one_line,
    request_body,
    request_path,
    session,
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
MOST_CASES, REPEATS = 64, 32
"""Pairs that are asked about, and requests that the baseline gets again; chosen by chance."""
_MAX_TOKENS = 256
"""The longest answer to a simple question: enough for a model that reasons first, and for a loop to be seen."""
_BRIEFLY = "Answer with one word or number only."
_AT_ONCE = 4
_BETWEEN_WORDS = re.compile(r"(?<=\w) (?=\w)")
"""Tokenizers begin a new token there."""
_NEAR = 48
"""The most characters before a difference that are written again."""


async def check_sense(
    http: aiohttp.ClientSession,
    plan: Plan,
    served: Mapping[str, Endpoint],
    *,
    out: Path,
    progress: Progress,
    wanted: bool,
) -> None:
    """Ask the baseline the simple questions that `out` has no answer to, and say how many it answers rightly.

    One question after the other, so that the answers do not depend on a batch. Greedy; of what the plan merges into its
    requests, only how the chat is written: the rest may force an answer's form. Raises StorageError.
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
            messages = [{"role": "user", "content": f"{question.text} {_BRIEFLY}"}]
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
            gone = "this run gets no verdict. --no-sense-check leaves the questions out"
            progress.warn(f"{outcome['text']}; {gone}")
        else:
            progress.tell(f"sense check: {outcome['text']}")


def _skipped(plan: Plan, served: Mapping[str, Endpoint], *, wanted: bool) -> str:
    """Why the baseline is not asked; empty where it is."""
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
    most: int = MOST_CASES,
    repeats: int = REPEATS,
    limit_s: float = 600.0,
) -> RawRun:
    """The run with the answers to what `out` does not hold yet, for which `limit_s` is taken at most; nothing is asked where
    all answers are equal or were drawn at a temperature.

    Raises StorageError, and ResultsError where another process does the same.
    """
    plan, requests = raw.plan, raw.by_nodes.requests
    differing = list(divergence.cases(requests, (), plan))
    if not differing or not plan.greedy:
        return raw
    known = {line.key: line for line in raw.closer}
    progress.tell(
        f"answers differ in {count(len(differing), 'pair')}; looking at them for {limit_s:.0f} s at most"
    )
    again = "repeat the command to continue"
    try:
        with Journal(out, divergence.FILE_NAME) as book:
            async with asyncio.timeout(limit_s), session(timeout_s) as http:
                look = _Look(
                    plan, raw.sittings[0].run, http, book, known, random.Random(plan.seed), raw.first_answers
                )
                await look.at(differing, most)
                await look.repeat(requests, repeats)
                cases = divergence.cases(requests, known.values(), plan)
                await look.at([case for case in cases if case.treatment == plan.baseline], most)
    except TimeoutError:
        progress.warn(f"stopped looking at differing answers after {limit_s:.0f} s; {again}")
    except EndpointError as error:
        progress.warn(f"{error}; not all differing answers were looked at, {again}")
    return replace(raw, closer=tuple(known.values()))


@dataclass(frozen=True)
class _Look:
    plan: Plan
    run: str
    http: aiohttp.ClientSession
    book: Journal
    known: dict[tuple[object, ...], Line]
    chance: random.Random
    first_answers: dict[str, str]

    async def at(self, cases: Sequence[Case], most: int) -> None:
        """Ask about the cases."""
        await _in_turn(self.chance.sample(cases, min(most, len(cases))), self._case, _AT_ONCE)

    async def repeat(self, requests: Iterable[RequestRecord], most: int) -> None:
        """Ask the baseline some of its requests once more, under the load that they had."""
        answers = list(divergence.answers_of(self.plan.baseline, requests).values())
        chosen = self.chance.sample(answers, min(most, len(answers)))
        for load in self.plan.loads:
            of_load = [record for record in chosen if record.load == load]
            await _in_turn(of_load, self._again, load.concurrency or _AT_ONCE)

    async def _again(self, record: RequestRecord) -> None:
        line = Again(run=self.run, pair_id=record.pair_id, started_unix_s=round(time.time(), 3))
        if line.key in self.known:
            return
        pair = asked_as(self.plan, record)
        url, most = self.plan.arm(record.arm).url + request_path(pair), self.plan.most_tokens(pair.prompt)
        result = await ask(self.http, url, request_body(self.plan, pair, self.first_answers), max_tokens=most)
        names = ("text", "completion_tokens", "cached_tokens")
        self._keep(
            line,
            result if isinstance(result, Failure) else {name: getattr(result, name) for name in names},
        )

    async def _case(self, case: Case) -> None:
        """First from shortly before the difference. What does not show a near-tie is asked again from the beginning of the
        answer, where no text is given that could be cut into other tokens than those it was written in."""
        share = case.common / max(len(case.text), 1)
        whole = int(1.5 * share * (case.ours.completion_tokens or len(case.text))) + 32
        whole = min(whole, self.plan.most_tokens(asked_as(self.plan, case.ours).prompt))
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
        body = question(request_body(self.plan, pair, self.first_answers), case.text[:given], max_tokens)
        url = self.plan.arm(arm).url + request_path(pair)
        answer = await ask_whole(self.http, url, body, max_tokens=max_tokens)
        if not isinstance(answer, Failure):
            try:
                answer = {"steps": _without_key(divergence.steps_of(answer))}
            except ValueError as error:
                answer = Failure("malformed", one_line(str(error)))
        return self._keep(line, answer)

    def _keep(self, line: _Line, answer: Failure | dict[str, Any]) -> _Line:
        """Write the line with its answer. Raises EndpointError where the server is gone, which is not written: it may come back."""
        if isinstance(answer, Failure):
            if answer.name.startswith("connect_"):
                raise EndpointError(f"{answer.name}: {answer.message}")
            answer = {"error": answer.name, "message": answer.message}
        line = replace(line, **answer)
        self.known[line.key] = line
        self.book.append(line)
        return line


def _without_key(steps: tuple[divergence.WrittenToken, ...]) -> tuple[divergence.WrittenToken, ...]:
    """The steps. Raises ValueError where they repeat the API key, over whichever number of tokens."""
    text = "\n".join(
        ["".join(token for token, _, _ in steps), *(token for _, _, top in steps for token in top)]
    )
    if hidden(text) != text:
        raise ValueError("the answer repeats the API key")
    return steps


def beginning(text: str, common: int) -> int:
    """How much of an answer to give so that its last words before `common` are written again; 0 where no place is fit."""
    places = [match.start() for match in _BETWEEN_WORDS.finditer(text[:common])][-2:]
    return places[0] if len(places) == 2 and common - places[0] <= _NEAR else 0


def question(body: bytes, given: str, max_tokens: int) -> bytes:
    """The request of the load, `body`, with log-probabilities, without a stream, and going on from `given` of its answer.

    A chat goes on from its last message in vLLM's way (`continue_final_message`); a server that does not know it writes
    something else, which is recognised.
    """
    content = json.loads(body)
    for key in ("stream_options", "max_completion_tokens", "min_tokens"):
        content.pop(key, None)
    content |= {"stream": False, "max_tokens": max_tokens}
    if "prompt" in content:
        content |= {"prompt": content["prompt"] + given, "logprobs": divergence.MOST_LISTED}
    else:
        content |= {"logprobs": True, "top_logprobs": divergence.MOST_LISTED}
        if given:
            content["messages"] = [*content["messages"], {"role": "assistant", "content": given}]
            content |= {"add_generation_prompt": False, "continue_final_message": True}
    return json.dumps(content).encode()


async def _in_turn(items: Iterable[Any], do: Callable[[Any], Awaitable[None]], at_once: int) -> None:
    """Do it for each item, so many at a time."""
    waiting = iter(items)

    async def slot() -> None:
        for item in waiting:
            await do(item)

    async with together() as tasks:
        for _ in range(at_once):
            tasks.create_task(slot())
