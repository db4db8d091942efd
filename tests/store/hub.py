"""A hub on loopback: the two addresses of Hugging Face that fetching uses, with commits, gates and broken lines."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER = "89abcdef0123456789abcdef0123456789abcdef"
TOKEN = "hf_let-me-in"


@dataclass
class StandInHub:
    """Serves `files` of every model; counts what was downloaded."""

    files: dict[str, bytes]
    newest: str = COMMIT
    gated: bool = False
    broken_after: int | None = None
    """Close the line after so many bytes of the next large file, once."""
    downloaded: list[str] = field(default_factory=list)

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandInHub

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0].strip("/")
        if self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, body)
        elif path.startswith("api/models/org/model"):
            self._info(path.removeprefix("api/models/org/model").removeprefix("/revision/"), body)
        elif path.startswith("org/model/resolve/"):
            commit, name = path.removeprefix("org/model/resolve/").split("/", 1)
            self._file(commit, name, body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)

    def _info(self, revision: str, body: bool) -> None:
        if revision not in ("", "main", COMMIT, LATER):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"}, body)
            return
        siblings = [
            {"rfilename": name, "size": len(content), **({"lfs": _lfs(content)} if _large(name) else {})}
            for name, content in self.hub.files.items()
        ]
        commit = revision if len(revision) == 40 else self.hub.newest
        data = {"id": "org/model", "modelId": "org/model", "sha": commit, "siblings": siblings}
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"}, body)

    def _file(self, commit: str, name: str, body: bool) -> None:
        content = self.hub.files[name]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        rest = content[start:]
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if body:
            self.hub.downloaded.append(name)
        if body and _large(name) and self.hub.broken_after is not None:
            cut, self.hub.broken_after = self.hub.broken_after, None
            self.close_connection = True
            self._send(206 if start else 200, rest, headers, body, cut=cut)
        else:
            self._send(206 if start else 200, rest, headers, body)

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], body: bool, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:cut])


def _large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def _lfs(content: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
