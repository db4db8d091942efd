from __future__ import annotations

import pytest

from benchmark.measure.sse import SseParser


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


def test_the_end_of_the_stream_completes_an_event_without_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]\n") == []
    assert parser.close() == ["[DONE]"]


def test_a_line_that_was_cut_short_is_dropped() -> None:
    parser = SseParser()
    parser.feed(b'data: {"half": ')
    assert parser.close() == []
