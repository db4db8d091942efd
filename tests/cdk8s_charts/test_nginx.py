"""That nginx starts and passes streams on, so that a test can put it between a client and a server."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

from tests.cdk8s_charts.nginx import needs_nginx, proxied


class _Stream(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for part in (b"data: 1\n\n", b"data: [DONE]\n\n"):
            self.wfile.write(part)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@needs_nginx
def test_a_stream_arrives_whole_through_a_proxy(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stream) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with proxied(server.server_port, tmp_path) as url, urlopen(url, timeout=10) as answer:
            assert answer.headers["Server"].startswith("nginx")
            assert answer.read() == b"data: 1\n\ndata: [DONE]\n\n"
        server.shutdown()
