"""The part of EKS that the API server asks about tokens: a webhook that knows those of `operations.cloud.eks_token`.

It judges their form, not their signature, which only AWS can.
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication
"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from operations.cloud.eks_token import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


ADMINISTRATOR = "AKIAIOSFODNN7EXAMPLE"
"""Access key of the only identity that the cluster lets in."""


def is_administrators(token: str) -> bool:
    """Whether it is a presigned sts:GetCallerIdentity of that key with the cluster's name among the signed headers."""
    if not token.startswith(PREFIX):
        return False
    text = token.removeprefix(PREFIX)
    url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    query = parse_qs(url.query)
    signed = query.get("X-Amz-SignedHeaders", [""])[0].split(";")
    return (
        url.scheme == "https"
        and (url.hostname or "").startswith("sts.")
        and query.get("Action") == ["GetCallerIdentity"]
        and {"host", "x-k8s-aws-id"} <= set(signed)
        and query.get("X-Amz-Credential", [""])[0].startswith(f"{ADMINISTRATOR}/")
    )


@contextmanager
def webhook(folder: Path) -> Iterator[Path]:
    """Answers the API server; the path is that of the configuration which leads there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Review)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    path = folder / "webhook.json"
    url = f"http://127.0.0.1:{server.server_address[1]}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tokens", "cluster": {"server": url}}],
        "users": [{"name": "server", "user": {}}],
        "contexts": [{"name": "tokens", "context": {"cluster": "tokens", "user": "server"}}],
        "current-context": "tokens",
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Review(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status: dict[str, Any] = {"authenticated": False}
        if is_administrators(review["spec"]["token"]):
            status = {"authenticated": True, "user": {"username": "admin", "groups": ["system:masters"]}}
        answer = json.dumps({**review, "status": status}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
