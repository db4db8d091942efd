"""The questions to servers before and after the load.

Before the load: the sanity check of each arm (`trnspec.benchmark.measure.sanity_check`). After the load, if greedy answers differ: some
requests to the baseline are repeated, to see how often it differs from itself. Each answer is recorded when it arrives, and is not asked
for again. A server that refuses or stops here does not end the run.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from trnspec.benchmark.errors import EndpointError
from trnspec.benchmark.measure import sanity_check
from trnspec.benchmark.measure.client import Sessions, ask, http_sessions, request_body, request_path
from trnspec.benchmark.measure.endpoints import Endpoint
from trnspec.benchmark.measure.journal import Journal
from trnspec.benchmark.measure.loader import in_slots
from trnspec.benchmark.measure.progress import Progress
from trnspec.benchmark.measure.raw_run import RawRun, answers_of, same_text
from trnspec.benchmark.measure.records import QuestionRecord, RepeatRecord, Reply, RequestRecord
from trnspec.benchmark.measure.schedule import Pair
from trnspec.benchmark.plan import Plan
from trnspec.core.words import count

REPEATS = 32
"""The maximum number of repeated requests to the baseline; chosen at random."""
_MAX_TOKENS = 256
"""The maximum tokens of an answer to a simple question: enough for a model that reasons first, and to detect a loop."""
_CONCURRENCY = 4


async def check_sense(
    http: Sessions,
    plan: Plan,
    served: Mapping[str, Endpoint],
    *,
    questions: Sequence[sanity_check.Question],
    run: str,
    journal: Journal,
    known: Iterable[QuestionRecord],
    progress: Progress,
) -> None:
    """Ask each arm the questions that are not `known` yet, and print how many it answers correctly.

    Questions are sent one after the other, so that answers do not depend on a batch, and decoding is greedy. Of the plan's
    `extra_body` only the chat template is used, because the rest may force the form of an answer. Raises StorageError.
    """
    if reason := _skipped(plan, served, questions):
        progress.tell(f"questions skipped: {reason}")
        return
    progress.tell(f"asking each arm {count(len(questions), 'question')}, one after the other")
    template = {key: value for key, value in plan.extra_body.items() if key == "chat_template_kwargs"}
    asked = {"model": plan.model, "stream": True, "temperature": 0, "max_tokens": _MAX_TOKENS, **template}
    answers = {(answer.arm, answer.question): answer for answer in known}
    for arm, question in product(plan.arms, questions):
        if (arm.name, question.text) in answers:
            continue
        messages = [{"role": "user", "content": f"{question.text}{question.instruction}"}]
        body = json.dumps(asked | {"messages": messages, "stream_options": {"include_usage": True}})
        now, url = round(time.time(), 3), f"{arm.url}/chat/completions"
        reply = await ask(http[arm.name], url, body.encode(), max_tokens=_MAX_TOKENS)
        answer = answers[arm.name, question.text] = QuestionRecord(
            run=run,
            arm=arm.name,
            question=question.text,
            accepted=question.accepted,
            started_unix_s=now,
            **_words(reply),
        )
        journal.append(answer)
    for outcome in sanity_check.outcomes(answers.values()):
        if outcome["withheld"]:
            remedy = f"{outcome['arm']} gets no verdict. --questions none skips the questions"
            progress.warn(f"{outcome['text']}; {remedy}")
        else:
            progress.tell(f"questions: {outcome['text']}")


def _words(reply: Reply) -> dict[str, Any]:
    return {"text": reply.text, "error": reply.error, "message": reply.message}


def _skipped(plan: Plan, served: Mapping[str, Endpoint], questions: Sequence[sanity_check.Question]) -> str:
    """Why the questions are skipped; empty if they are not."""
    if not questions:
        return "--questions none was given"
    if plan.dummy_weights:
        return "the plan says that the weights are dummies"
    if any(endpoint.emulated for endpoint in served.values()):
        return "the endpoints are emulated"
    if all(prompt.messages is None for prompt in plan.prompts):
        return "your prompts are sent as raw text, without a chat template"
    return ""


async def ask_again(
    raw: RawRun,
    *,
    out: Path,
    progress: Progress,
    maximum: int = REPEATS,
    limit_s: float = 600.0,
) -> RawRun:
    """Ask the baseline again those of its requests that are not repeated in `out` yet, for at most `limit_s`; returns the run with the
    answers. Nothing is asked if all answers are equal or decoding is not greedy.

    Raises StorageError, and ResultsError if another process does the same.
    """
    plan, by_arm = raw.plan, {arm: answers_of(arm, raw.by_nodes.requests) for arm in raw.plan.baselines}
    differing = sum(same_text(by_arm[base], by_arm[arm]).count(False) for arm, base in plan.baselines.items())
    if not differing or not plan.greedy:
        return raw
    known = {repeat.pair_id: repeat for repeat in raw.repeats}
    answers = list(by_arm[plan.baseline].values())
    chosen = random.Random(plan.seed).sample(answers, min(maximum, len(answers)))
    progress.tell(
        f"answers differ in {count(differing, 'pair')}; repeating requests to {plan.baseline}, to see how often it differs from "
        f"itself, for {limit_s:.0f} s at most"
    )
    again = "repeat the command to continue"
    try:
        with Journal(out) as journal:
            async with asyncio.timeout(limit_s), http_sessions(plan) as http:

                async def repeat(record: RequestRecord) -> None:
                    if record.pair_id not in known:
                        known[record.pair_id] = line = await _repeated(http, plan, record)
                        journal.append(line)

                for load in plan.loads:  # under the load that they had
                    of_load = [record for record in chosen if record.load == load]
                    await in_slots(of_load, repeat, load.concurrency or _CONCURRENCY)
    except TimeoutError:
        progress.warn(f"stopped repeating requests to {plan.baseline} after {limit_s:.0f} s; {again}")
    except EndpointError as error:
        progress.warn(f"{error}; not all requests were repeated, {again}")
    return replace(raw, repeats=tuple(known.values()))


async def _repeated(http: Sessions, plan: Plan, record: RequestRecord) -> RepeatRecord:
    """The second answer to a request. Raises EndpointError if the server cannot be reached, because it may come back."""
    now = round(time.time(), 3)
    prompt = next(prompt for prompt in plan.prompts if prompt.id == record.prompt_id)
    pair = Pair(id=record.pair_id, prompt=prompt, nonce=record.nonce)
    url, maximum = plan.arm(record.arm).url + request_path(pair), plan.answer_limit(prompt)
    reply = await ask(http[record.arm], url, request_body(plan, pair), max_tokens=maximum)
    if (reply.error or "").startswith("connect_"):
        raise EndpointError(f"{reply.error}: {reply.message}")
    return RepeatRecord(run=record.run, pair_id=record.pair_id, started_unix_s=now, **_words(reply))
