"""A server on loopback that writes whatever bytes a test wants, over real sockets.

The first part of a URL's path chooses the behaviour: `/bomb/v1/models` is asked of the behaviour `bomb`.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Self
from urllib.parse import quote, unquote

from tests.benchmark.endpoint import MODEL

Answer = Callable[[], Iterable[bytes]]
"""What is sent after a request, piece by piece; the connection is closed at its end."""

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def answered(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer that is not a stream."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def event(content: Any) -> bytes:
    """An event whose data is `content`, as JSON unless it is bytes; infinity is written as a number, 1e400."""
    data = (
        content if isinstance(content, bytes) else json.dumps(content).replace("Infinity", "1e400").encode()
    )
    return b"data: " + data + b"\n\n"


def chunk(text: str = "word ", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], **more}


MODELS = answered(
    json.dumps({"data": [{"id": MODEL, "owned_by": "vllm"}]}).encode(), "Content-Type: application/json"
)
NO_METRICS = answered(b"", status="404 Not Found")


class Misbehaving:
    """The server, a thread for each connection. A context manager.

    `models` and `metrics` replace, by behaviour, the usual answers; `answers` is what is said to a completion.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        models: Mapping[str, Answer] | None = None,
        metrics: Mapping[str, Answer] | None = None,
    ) -> None:
        self._answers, self._models, self._metrics = answers, models or {}, metrics or {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/{quote(behaviour)}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._listening.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            behaviour, path = _request(connection)
            for piece in self._answer(behaviour, path):
                connection.sendall(piece)

    def _answer(self, behaviour: str, path: str) -> Iterable[bytes]:
        if path.endswith("/models"):
            return self._models.get(behaviour, lambda: [MODELS])()
        if path.endswith("/metrics"):
            return self._metrics.get(behaviour, lambda: [NO_METRICS])()
        return self._answers[behaviour]()


def _request(connection: socket.socket) -> tuple[str, str]:
    """Read one request; its behaviour and its path."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].split(b":")[1]) - len(body) if lengths else 0
    while missing > 0:
        missing -= len(connection.recv(65536))
    path = head.split(b" ")[1].decode()
    return unquote(path.split("/")[1]), path
