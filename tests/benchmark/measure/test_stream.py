from __future__ import annotations

import json
from typing import Any

import pytest

from trnspec.benchmark.measure.stream import SseParser, StreamFault, StreamTally


def chat(tokens: float | str | None = None, **delta: Any) -> dict[str, Any]:
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}], **usage}


def total(tokens: float, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}, **more}


ROLE = chat(0, role="assistant", content="")
STATISTICS = {"num_spec_steps": 4, "num_accepted_draft_tokens": 9}
ANSWERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "usage in each chunk tells its tokens": (
        [ROLE, chat(1, content="a"), chat(8, content="b c"), total(8)],
        {
            "token_source": "usage-per-chunk",
            "chunk_tokens": (1, 7),
            "completion_tokens": 8,
            "chunk_s": (2.0, 3.0),
            "stream_chunks": 3,
        },
    ),
    "usage at the end tells the total": (
        [chat(content="a"), chat(content="b c d"), total(4)],
        {"token_source": "final-usage", "chunk_tokens": None, "chunk_chars": (1, 5), "completion_tokens": 4},
    ),
    "without usage nothing is guessed": (
        [chat(content="a"), chat(content="b")],
        {"token_source": "chunks", "chunk_tokens": None, "completion_tokens": None},
    ),
    "usage that is not cumulative is not believed": (
        [chat(1, content="a"), chat(1, content="b"), total(2)],
        {"token_source": "final-usage", "chunk_tokens": None, "completion_tokens": 2},
    ),
    "a token whose text is held back counts when it is counted": (
        [chat(1, content="a"), chat(2, content=""), chat(3, content="🙂"), total(3)],
        {"chunk_s": (1.0, 2.0, 3.0), "chunk_tokens": (1, 1, 1)},
    ),
    "a role and an empty delta are no output": (
        [chat(role="assistant"), chat(content=""), chat(content=None), chat(content="a"), chat()],
        {"chunk_s": (4.0,), "stream_chunks": 5},
    ),
    "reasoning is output": (
        [chat(reasoning_content="h"), chat(reasoning="m "), chat(content="yes")],
        {"chunk_s": (1.0, 2.0, 3.0), "text": "hm yes"},
    ),
    "every text of a delta is output": (
        [
            chat(role="assistant", content="I ask. "),
            chat(tool_calls=[{"index": 0, "id": "call-1", "type": "function", "function": {"name": "ask"}}]),
            chat(tool_calls=[{"index": 0, "function": {"arguments": '{"x": 1}'}}]),
            chat(refusal="No. "),
            chat(thoughts=[{"text": "hm"}]),
            chat(reasoning="so", reasoning_content="so"),
        ],
        {
            "text": 'I ask. ask{"x": 1}No. hmso',
            "output_keys": ("content", "tool_calls", "refusal", "thoughts", "reasoning", "reasoning_content"),
        },
    ),
    "numbers can be written in other ways": (
        [chat("1", content="a"), chat(2.0, content="b"), total(2.0), {"choices": None, "usage": None}],
        {"chunk_tokens": (1, 1), "completion_tokens": 2},
    ),
    "a character cut into two escapes is put together": (
        [{"choices": [{"text": "\ud83d"}]}, {"choices": [{"text": "\ude42", "finish_reason": "length"}]}],
        {"text": "🙂"},
    ),
    "the server's statistics of speculation are kept": (
        [chat(content="a"), total(2, metrics={"speculative_decoding": STATISTICS})],
        {"spec_stats": STATISTICS},
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_what_its_events_say(case: str) -> None:
    events, told = ANSWERS[case]
    tally = StreamTally()
    for at_s, event in enumerate(events, start=1):
        tally.take(json.dumps(event), float(at_s))
    tally.take("[DONE]", len(events) + 1.0)
    found = tally.reply()
    assert {key: getattr(found, key) for key in told} == told


def ended(*said: str) -> str:
    """The name of the fault of a stream of this, or the source of its tokens."""
    tally = StreamTally()
    try:
        for data in said:
            tally.take(data, 1.0)
        return tally.reply().token_source or ""
    except StreamFault as fault:
        return fault.name


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("length", "chunks"),
        ("MAX_TOKENS", "chunks"),
        ("end_turn", "chunks"),
        ("function_call", "chunks"),
        ("abort", "ended_abort"),
        ("error", "ended_error"),
        ("content_filter", "ended_content_filter"),
        ("GPU lost!", "ended_otherwise"),
        (None, "no_finish_reason"),
    ],
)
def test_only_an_answer_that_ended_well_is_an_answer(reason: str | None, named: str) -> None:
    event = {"choices": [{"delta": {"content": "a"}, "finish_reason": reason}]}
    assert ended(json.dumps(event), "[DONE]") == named


def test_what_cannot_be_misread_is_read() -> None:
    said = [json.dumps(chat(content="a")), "", "null", json.dumps(total(1))]
    assert ended(*said, " [DONE] ") == "final-usage"
    assert ended(*said) == "final-usage", "finish reason and usage came"
    assert ended(*said[:-1]) == "no_done"


def test_a_delta_that_is_nested_too_deeply_is_named() -> None:
    nested = "[" * 900 + '"a"' + "]" * 900
    with pytest.raises(StreamFault, match="nested too deeply"):
        StreamTally().take('{"choices": [{"delta": {"content": ' + nested + "}}]}", 0.1)


@pytest.mark.parametrize(
    "data", ['{"error": {"message": "engine died"}}', '{"object": "error", "message": "engine died"}']
)
def test_an_error_within_the_stream_is_named(data: str) -> None:
    with pytest.raises(StreamFault, match="engine died") as fault:
        StreamTally().take(data, 1.0)
    assert fault.value.name == "stream_error"


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a \n\n", [" a "]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: one\ndata: two\n\n", ["one\ntwo"]),
        (b": comment\n\ndata: a\n: within\n\n", ["a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", ["a"]),
        (b"\n\n\n\ndata: a\n\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        ("data: grün 🙂\u2028\n\n".encode(), ["grün 🙂\u2028"]),
        (b"database: a\n\n", []),
        (b'data: [DONE]\ndata: {"half": ', ["[DONE]"]),
    ],
)
def test_events_are_the_same_however_packets_cut_the_stream(stream: bytes, events: list[str]) -> None:
    """The end of a stream completes an event without its blank line, and drops half a line."""
    for size in range(1, len(stream) + 1):
        parser = SseParser()
        found = [e for at in range(0, len(stream), size) for e in parser.feed(stream[at : at + size])]
        assert found + parser.close() == events
