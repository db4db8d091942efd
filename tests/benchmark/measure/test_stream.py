from __future__ import annotations

import json
from typing import Any

import pytest

from benchmark.measure.stream import Output, SseParser, StreamFault, StreamTally


def chat(tokens: int | None = None, **delta: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"choices": [{"index": 0, "delta": delta}]}
    return (
        content if tokens is None else content | {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    )


def total(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


def output(*events: dict[str, Any]) -> Output:
    """The answer of events that arrive at 1 s, 2 s..."""
    tally = StreamTally()
    for at_s, event in enumerate(events, start=1):
        tally.take(json.dumps(event), float(at_s))
    tally.take("[DONE]", len(events) + 1.0)
    return tally.output()


ROLE = chat(0, role="assistant", content="")
USAGE: dict[str, tuple[list[dict[str, Any]], str, tuple[int, ...] | None, int | None]] = {
    "cumulative": (
        [ROLE, chat(1, content="a"), chat(8, content="b c"), total(8)],
        "usage-per-chunk",
        (1, 7),
        8,
    ),
    "only at the end": ([chat(content="a"), chat(content="b c d"), total(4)], "final-usage", None, 4),
    "none": ([chat(content="a"), chat(content="b")], "chunks", None, None),
    "not cumulative": ([chat(1, content="a"), chat(1, content="b"), total(2)], "final-usage", None, 2),
}


@pytest.mark.parametrize("usage", USAGE)
def test_tokens_are_taken_from_the_usage_and_never_guessed(usage: str) -> None:
    events, *told = USAGE[usage]
    found = output(*events)
    assert [found.token_source, found.chunk_tokens, found.completion_tokens] == told
    assert found.chunk_s == ((2.0, 3.0) if usage == "cumulative" else (1.0, 2.0)), "a role carries no output"


def test_role_only_and_empty_deltas_carry_no_output_but_count_as_stream_chunks() -> None:
    found = output(chat(role="assistant"), chat(content=""), chat(content=None), chat(content="a"), chat())
    assert (found.chunk_s, found.stream_chunks) == ((4.0,), 5)


def test_reasoning_counts_as_output() -> None:
    found = output(chat(reasoning_content="h"), chat(reasoning="m "), chat(content="yes"))
    assert (found.chunk_s, found.text) == ((1.0, 2.0, 3.0), "hm yes")


def test_a_token_whose_text_is_held_back_counts_when_it_is_counted() -> None:
    found = output(chat(1, content="a"), chat(2, content=""), chat(3, content="🙂"), total(3))
    assert (found.chunk_s, found.chunk_tokens) == ((1.0, 2.0, 3.0), (1, 1, 1))


def test_a_character_cut_into_two_escapes_is_put_together() -> None:
    tally = StreamTally()
    for half in ("\\ud83d", "\\ude42"):
        tally.take('{"choices": [{"text": "' + half + '"}]}', 1.0)
    tally.take("[DONE]", 1.0)
    assert tally.output().text == "🙂"


def test_the_servers_statistics_of_speculation_are_kept() -> None:
    said = {"num_spec_steps": 4, "num_accepted_draft_tokens": 9}
    found = output(chat(content="a"), total(2) | {"metrics": {"speculative_decoding": said}})
    assert found.spec_stats == said


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
    ],
)
def test_events_are_the_same_however_packets_cut_the_stream(stream: bytes, events: list[str]) -> None:
    for size in range(1, len(stream) + 1):
        parser = SseParser()
        found = [e for at in range(0, len(stream), size) for e in parser.feed(stream[at : at + size])]
        assert found + parser.close() == events


def test_the_end_of_the_stream_completes_an_event_without_its_blank_line_and_drops_half_a_line() -> None:
    parser = SseParser()
    assert parser.feed(b'data: [DONE]\ndata: {"half": ') == []
    assert parser.close() == ["[DONE]"]
