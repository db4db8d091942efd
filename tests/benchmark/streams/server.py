"""A server of two arms, whose engine makes tokens at known times, and what stands between the engine and the client.

`/NAME/plain/v1` and `/NAME/drafted/v1` are the arms of the behaviour NAME: a token every 10 ms, and three every 12 ms. `/truth` is how
fast the engine really was since it was last asked, so that a busy machine does not spoil the truth. Written on sockets, because the packets are the subject.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from tests.benchmark.streams.behaviours import BEHAVIOURS, MODEL, Behaviour

STEP_S, PER_STEP = {"plain": 0.010, "drafted": 0.012}, {"plain": 1, "drafted": 3}
WORDS = ["the", "time", "people", "water", "could", "first", "day", "how", "number", "sound", "long", "little", "world", "after", "thing", "name", "good", "sentence", "man", "think", "say", "great", "where", "help", "through", "much", "before", "line", "right", "too", "mean", "old", "any", "same", "tell", "boy", "follow", "came", "want", "show"]  # fmt: skip
TRUTH: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
"""What the engine really did in each whole answer, by behaviour and arm."""
Write = Callable[[bytes], None]


class Way:
    """Sends what it is given at once."""

    def __init__(self, how: Behaviour, write: Write) -> None:
        self.how, self.write, self.kept, self.started = how, write, list[bytes](), False

    def send(self, packet: bytes) -> None:
        self.kept.append(packet)
        how, size = self.how, sum(map(len, self.kept))
        if how.whole or how.flush_s:
            return
        if how.held_bytes and (size < how.held_bytes and not (how.held_once and self.started)):
            return
        self.started = True
        keep = self.kept[-how.lags :] if how.lags else []
        del self.kept[len(self.kept) - len(keep) :]
        self.flush()
        self.kept = keep

    def flush(self) -> None:
        if self.kept:
            self.write(b"".join(self.kept))
            self.kept = []

    async def clock(self) -> None:
        begun, tick = perf_counter(), 0
        while self.how.flush_s:
            tick += 1
            await asyncio.sleep(max(0.0, begun + tick * self.how.flush_s - perf_counter()))
            self.flush()


async def steps(arm: str, words: list[str], how: Behaviour) -> AsyncIterator[tuple[list[str], float]]:
    """The tokens of each step, and when the engine had made them."""
    begun, done, number = perf_counter(), 0, 0
    while done < len(words):
        size = how.first_tokens if not done and how.first_tokens else PER_STEP[arm] if done else 1
        await asyncio.sleep(max(0.0, begun + how.first_s + number * STEP_S[arm] - perf_counter()))
        yield words[done : done + size], perf_counter()
        done, number = done + size, number + 1


def text_of(body: dict[str, Any], how: Behaviour, arm: str) -> list[str]:
    """The tokens of an answer, which depend on the question alone, but for the end where the arms differ; a token is a word."""
    chance = random.Random(json.dumps(body.get("messages") or body["prompt"]))
    length = int(how.tokens * chance.uniform(0.8, 1.0))
    words = [f" {chance.choice(WORDS)}" for _ in range(length)]
    if how.differs:
        words[12:] = [
            f" {random.Random(f'{arm}{word}{at}').choice(WORDS)}" for at, word in enumerate(words[12:])
        ]
    return [f"{word}🙂ü"[: len(word) + chance.randint(0, 2)] for word in words] if how.unicode else words


def sse(how: Behaviour, content: Any) -> bytes:
    text = json.dumps(content, ensure_ascii=not how.unicode, indent=1 if how.lines else None)
    lines = [f"data: {line}" for line in text.splitlines()] if how.lines else [f"data: {text}"]
    return (how.newline.join(lines) + how.newline * 2).encode()


def chunk(how: Behaviour, text: str, done: int, total: int, at: float, chat: bool) -> bytes:
    """The event of a piece of text; `at` is its place in the answer, from 0 to 1."""
    delta, usage = how.delta(text, at), {}
    choice = {"index": 0, "delta": delta, "finish_reason": None} if chat else {"index": 0, "text": text}
    if how.usage == "each":
        usage = {"usage": {"prompt_tokens": 9, "completion_tokens": done}}
    elif how.usage == "zeros":
        usage = {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    elif how.usage == "null":
        usage = {"usage": None}
    return sse(how, {"object": "chat.completion.chunk", "model": how.model, "choices": [choice], **usage})


def ending(how: Behaviour, total: int, reason: str | None, chat: bool) -> list[bytes]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason} | ({"delta": {}} if chat else {"text": ""})
    as_written: Callable[[int], Any] = {"float": float, "text": str}.get(how.usage, int)
    last = {"prompt_tokens": as_written(9), "completion_tokens": as_written(total), **how.more_usage}
    with_it = how.usage in ("zeros", "inside")
    choice |= {"usage": last} if how.usage == "inside" else {}
    events = [sse(how, {"choices": [choice], **({"usage": last} if how.usage == "zeros" else {})})]
    events += [sse(how, {"choices": how.choices_at_end, "usage": last})] * (
        how.usage != "none" and not with_it
    )
    return [*events, *how.last_events]


async def stream(write: Write, body: dict[str, Any], name: str, arm: str, how: Behaviour) -> None:
    chat, words, way = "messages" in body, text_of(body, how, arm)[: body["max_tokens"]], Way(how, write)
    clock, begun_s = asyncio.create_task(way.clock()), perf_counter()
    if how.fallback and len(words) % 3 == 0:
        how = replace(how, model="other/model")
    done, times, reason, packed = 0, list[tuple[float, int]](), how.reason, list[str]()
    if chat:
        way.send(
            sse(how, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": how.role_text}}]})
        )
    for event in (*how.first_events, *([chunk(how, how.early, 0, 0, 0, chat)] if how.early else ())):
        way.send(event)
    async for tokens, at_s in steps(arm, words, how):
        times.append((at_s, len(tokens)))
        packed += tokens
        ended = done + len(packed) == len(words)
        if how.cut and done + len(packed) >= how.cut:
            way.send(chunk(how, "".join(packed), done, len(words), 0, chat))
            done += len(packed)
            break
        if len(packed) < how.per_chunk and done and not ended:
            continue
        pieces = packed if how.by_token else ["".join(packed)]
        if how.halves:
            pieces = [half for one in pieces for half in (one[:2], one[2:]) if half]
        for index, piece in enumerate(pieces):
            done_so_far = done + (index + 1) * len(packed) // len(pieces)
            event = chunk(how, piece, done_so_far, len(words), done / len(words), chat)
            for part in (event[: len(event) // 2], event[len(event) // 2 :]) if how.split else (event,):
                way.send(part)
                if how.split:
                    await asyncio.sleep(0.002)
        way.send(how.between) if how.between else None
        done, packed = done + len(packed), []
    if len(times) > 1 and not how.cut:
        (first_s, first), last_s = times[0], times[-1][0]
        truth = {"ttft_s": first_s - begun_s, "tpot_s": (last_s - first_s) / (done - first)}
        TRUTH[name, arm].append(truth | {"output_tokens_per_s": done / (last_s - begun_s)})
    if how.footer_s:
        await asyncio.sleep(how.footer_s)
        way.send(chunk(how, " This was written by a machine.", done, len(words), 1, chat))
    for event in (
        ending(how, round((done + how.hidden) * how.overcount), reason, chat) if not how.breaks else ()
    ):
        way.send(event)
    if how.flush_s and how.end_waits:
        await asyncio.sleep(how.flush_s)
    clock.cancel()
    while how.replay_s and way.kept:
        way.write(way.kept.pop(0))
        await asyncio.sleep(how.replay_s)
    way.flush()
    if how.breaks:
        raise ConnectionResetError


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            method, path, version = line.decode().split()
            length = 0
            while (header := await reader.readline()) not in (b"\r\n", b""):
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            body = json.loads(await reader.readexactly(length)) if length else {}
            await respond(writer, method, path, body, chunked=version != "HTTP/1.0")
            if version == "HTTP/1.0":  # as nginx asks by default: the end of the connection ends the answer
                break
    except ConnectionResetError:
        if writer.transport:
            writer.transport.abort()
    except (asyncio.IncompleteReadError, BrokenPipeError):
        pass
    finally:
        writer.close()


async def respond(
    writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any], *, chunked: bool
) -> None:
    if path == "/truth":
        said = {f"{name}/{arm}": own for (name, arm), own in TRUTH.items()}
        TRUTH.clear()
        return plain(writer, 200, said)
    if path.endswith("/models"):
        return plain(writer, 200, {"data": [{"id": MODEL, "owned_by": "zoo"}]})
    if method == "GET":
        return plain(writer, 404, {})
    _, name, arm, *_ = path.split("/")
    how = BEHAVIOURS[name].of(arm)
    if refused := how.refuses(body):
        return plain(writer, 422, {"detail": f"Extra inputs are not permitted: {refused}"})
    if how.status:
        return plain(writer, how.status, {"error": {"message": "come back later"}})
    if how.page:
        return plain(writer, 200, how.page, "text/html" if isinstance(how.page, str) else "application/json")
    headers = [b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream"]
    headers += [b"Transfer-Encoding: chunked"] * chunked + [b"Content-Encoding: gzip"] * how.gzip
    writer.write(b"\r\n".join(headers) + b"\r\n\r\n")

    def write(packet: bytes) -> None:
        if not writer.is_closing():
            writer.write(b"%x\r\n%b\r\n" % (len(packet), packet) if chunked else packet)

    await stream(write, body, name, arm, how)
    if chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def plain(writer: asyncio.StreamWriter, status: int, content: Any, type_: str = "application/json") -> None:
    data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {type_}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
