"""After the load, outside its times: where greedy answers differ, both servers are asked for log-probabilities there, and
the baseline is asked some of its requests again, which shows how often it differs from itself.

Everything is written to `divergence.jsonl` as it comes; what is there is not asked again. A server that refuses, breaks
off or ends here costs lines of that file and nothing of the run.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmark.errors import EndpointError
from benchmark.measure import divergence
from benchmark.measure.api_key import hidden
from benchmark.measure.client import Failure, ask, ask_whole, one_line, request_body, request_path, session
from benchmark.measure.divergence import Again, Asked, Case, Line
from benchmark.measure.journal import Journal, RawRun
from benchmark.measure.loader import together
from benchmark.measure.progress import Progress
from benchmark.measure.records import RequestRecord
from benchmark.measure.schedule import asked_as
from benchmark.plan import Plan
from core.words import count

MOST_CASES, REPEATS = 64, 32
"""Pairs that are asked about, and requests that the baseline gets again; chosen by chance."""
_AT_ONCE = 4
_BETWEEN_WORDS = re.compile(r"(?<=\w) (?=\w)")
"""Tokenizers begin a new token there."""
_NEAR = 48
"""The most characters before a difference that are written again."""


async def look_closer(
    raw: RawRun,
    *,
    out: Path,
    timeout_s: float,
    progress: Progress,
    most: int = MOST_CASES,
    repeats: int = REPEATS,
    limit_s: float = 600.0,
) -> None:
    """Ask what `out` does not hold yet, for `limit_s` at most; nothing where all answers are equal or were drawn at a temperature.

    Raises StorageError, and ResultsError where another process does the same.
    """
    plan, differing = raw.plan, list(divergence.cases(raw.requests, (), raw.plan))
    if not differing or not plan.greedy:
        return
    progress.tell(
        f"answers differ in {count(len(differing), 'pair')}; looking at them for {limit_s:.0f} s at most"
    )
    again = "the same command goes on from here"
    try:
        with Journal(out, divergence.FILE_NAME) as book:
            async with asyncio.timeout(limit_s), session(timeout_s) as http:
                known = {line.key: line for line in raw.closer}
                look = _Look(plan, raw.sittings[0].run, http, book, known, random.Random(plan.seed), raw.said)
                await look.at(differing, most)
                await look.repeat(raw.requests, repeats)
                found = divergence.cases(raw.requests, known.values(), plan)
                await look.at([case for case in found if case.treatment == plan.baseline], most)
    except TimeoutError:
        progress.warn(f"stopped looking at differing answers after {limit_s:.0f} s; {again}")
    except EndpointError as error:
        progress.warn(f"{error}; not all differing answers were looked at, {again}")


@dataclass(frozen=True)
class _Look:
    plan: Plan
    run: str
    http: aiohttp.ClientSession
    book: Journal
    known: dict[tuple[object, ...], Line]
    chance: random.Random
    said: dict[str, str]

    async def at(self, found: Sequence[Case], most: int) -> None:
        """Ask about the cases."""
        await _in_turn(self.chance.sample(found, min(most, len(found))), self._case, _AT_ONCE)

    async def repeat(self, requests: Iterable[RequestRecord], most: int) -> None:
        """Ask the baseline some of its requests once more, under the load that they had."""
        answers = list(divergence.answers_of(self.plan.baseline, requests).values())
        chosen = self.chance.sample(answers, min(most, len(answers)))
        for load in self.plan.loads:
            of_load = [
                r for r in chosen if (r.concurrency, r.rate_per_s) == (load.concurrency, load.rate_per_s)
            ]
            await _in_turn(of_load, self._again, load.concurrency or _AT_ONCE)

    async def _again(self, record: RequestRecord) -> None:
        line = Again(run=self.run, pair_id=record.pair_id, started_unix_s=round(time.time(), 3))
        if line.key in self.known:
            return
        pair = asked_as(self.plan, record)
        url, most = self.plan.arm(record.arm).url + request_path(pair), self.plan.most_tokens(pair.prompt)
        result = await ask(self.http, url, request_body(self.plan, pair, self.said), max_tokens=most)
        names = ("text", "completion_tokens", "cached_tokens")
        said = result if isinstance(result, Failure) else {name: getattr(result, name) for name in names}
        self._keep(replace(line, **_said(said)))

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
            found = divergence.judge(case, ours, theirs)
            if found.name == "near-tie" or found.why in divergence.UNREAL:
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
        body = question(request_body(self.plan, pair, self.said), case.text[:given], max_tokens)
        url = self.plan.arm(arm).url + request_path(pair)
        said = await ask_whole(self.http, url, body, max_tokens=max_tokens)
        if not isinstance(said, Failure):
            try:
                said = {"steps": _without_key(divergence.steps_of(said))}
            except ValueError as error:
                said = Failure("malformed", one_line(str(error)))
        done = replace(line, **_said(said))
        self._keep(done)
        return done

    def _keep(self, line: Line) -> None:
        self.known[line.key] = line
        self.book.write(divergence.to_json(line))


def _without_key(steps: tuple[divergence.Step, ...]) -> tuple[divergence.Step, ...]:
    """The steps. Raises ValueError where they repeat the API key, over whichever number of tokens."""
    text = "\n".join(["".join(token for token, _, _ in steps), *(one for _, _, top in steps for one in top)])
    if hidden(text) != text:
        raise ValueError("the answer repeats the API key")
    return steps


def _said(said: Failure | dict[str, Any]) -> dict[str, Any]:
    """For the line. Raises EndpointError where the server is gone, which is not written: it may come back."""
    if not isinstance(said, Failure):
        return said
    if said.name.startswith("connect_"):
        raise EndpointError(f"{said.name}: {said.message}")
    return {"error": said.name, "message": said.message}


def beginning(text: str, common: int) -> int:
    """How much of an answer to give so that its last words before `common` are written again; 0 where no place is fit."""
    places = [found.start() for found in _BETWEEN_WORDS.finditer(text[:common])][-2:]
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
