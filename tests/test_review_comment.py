"""A review as a comment, against a server that answers as GitHub does: what it may write, and what it must not believe."""

from __future__ import annotations

import io
import json
import re
import runpy
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.conftest import ROOT

_SCRIPT = runpy.run_path(str(ROOT / ".github" / "review_comment.py"))
MARK, MOST_BYTES, MOST_CHARACTERS = _SCRIPT["MARK"], _SCRIPT["MOST_BYTES"], _SCRIPT["MOST_CHARACTERS"]
harmless, main = _SCRIPT["harmless"], _SCRIPT["main"]
COMMIT = "0dc0acf97c284eb15ca5d4e46ddc3e4c5c1f8c9e"
REPOSITORY = "/repos/example/project"


def packed(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A repository with one pull request of a fork, artifacts of one run and comments, and the environment of the job."""
    github = SimpleNamespace(
        pulls=[{"number": 7, "head": {"sha": COMMIT}}],
        artifacts=[{"id": 31, "size_in_bytes": 900}],
        packed={31: packed("review.md", b"Nothing changes.")},
        comments=[],
        written=[],
        tokens_elsewhere=[],
    )

    class Handler(BaseHTTPRequestHandler):
        def _send(self, status: int, content: bytes = b"{}", **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            known = {
                f"{REPOSITORY}/pulls?state=open&head=someone%3Afeature%2Fone": github.pulls,
                f"{REPOSITORY}/actions/runs/5/artifacts?name=review": {"artifacts": github.artifacts},
                f"{REPOSITORY}/issues/7/comments?per_page=100": github.comments[:100],
            }
            if self.path.startswith("/elsewhere/"):
                github.tokens_elsewhere.append(self.headers["Authorization"])
                self._send(200, github.packed[int(self.path.rpartition("/")[2])])
            elif self.headers["Authorization"] != "Bearer secret":
                self._send(401)
            elif self.path.startswith(f"{REPOSITORY}/actions/artifacts/"):
                self._send(302, Location=f"{address}/elsewhere/{self.path.split('/')[-2]}")
            else:
                self._send(200, json.dumps(known[self.path]).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            github.written.append((self.command, self.path, body["body"]))
            self._send(201)

        do_PATCH = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    owner = {"owner": {"login": "someone"}}
    run = {"id": 5, "head_sha": COMMIT, "head_branch": "feature/one", "head_repository": owner}
    (tmp_path / "event.json").write_text(json.dumps({"workflow_run": run}), encoding="utf-8")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
    monkeypatch.setenv("GITHUB_REPOSITORY", "example/project")
    monkeypatch.setenv("GITHUB_API_URL", address)
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    yield github
    server.shutdown()
    server.server_close()


def test_the_newest_review_becomes_a_comment_and_the_token_stays_with_github(github: Any) -> None:
    github.artifacts.insert(0, {"id": 32, "size_in_bytes": 9})
    github.packed[32] = packed("review.md", b"Nothing changes any more.")
    assert main() == 0
    ((method, path, text),) = github.written
    assert (method, path) == ("POST", f"{REPOSITORY}/issues/7/comments")
    assert text.startswith(MARK)
    assert COMMIT in text
    assert text.endswith("Nothing changes any more.")
    assert github.tokens_elsewhere == [None]


def test_a_later_review_replaces_its_own_comment_and_no_other_and_is_cut(github: Any) -> None:
    github.packed[31] = packed("review.md", b"@" * 5 * MOST_BYTES)
    assert len(github.packed[31]) < MOST_BYTES
    by_hand = {"id": 1, "user": {"login": "someone"}, "body": MARK}
    of_another_job = {"id": 2, "user": {"login": "github-actions[bot]"}, "body": "coverage"}
    ours = {"id": 3, "user": {"login": "github-actions[bot]"}, "body": f"{MARK}\nold"}
    github.comments = [by_hand, *[of_another_job] * 40, ours]
    assert main() == 0
    ((method, path, text),) = github.written
    assert (method, path, len(text)) == ("PATCH", f"{REPOSITORY}/issues/comments/3", MOST_CHARACTERS)


@pytest.mark.parametrize(
    "change",
    [
        {"pulls": []},
        {"pulls": [{"number": 7, "head": {"sha": "f" * 40}}]},
        {"artifacts": []},
        {"artifacts": [{"id": 31, "size_in_bytes": MOST_BYTES + 1}]},
        {"packed": {31: b"no archive"}},
        {"packed": {31: packed("../review.md", b"")}},
    ],
    ids=["closed", "newer commit", "no artifact", "too large", "not a zip file", "another name"],
)
def test_where_posting_is_not_possible_one_line_says_so(
    change: dict[str, Any], github: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    vars(github).update(change)
    assert main() == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert github.written == []


HARMFUL = [
    "@octocat, please merge",
    "&#64;octocat &commat;octocat",
    "[log in](https://evil.example)",
    "[log in][1]\n\n[1]: https://evil.example",
    "![x](//evil.example/x.png)",
    "<https://evil.example>",
    "see https://evil.example or www.evil.example",
    "<img src=//evil.example/x.png>",
    "<details open><a href=//evil.example>x</a></details>",
    "</details><!-- ",
    "closes #12",
    "safe\u202elooks \u200b@octocat",
]


@pytest.mark.parametrize("text", HARMFUL)
def test_nothing_in_a_review_links_loads_calls_or_starts(text: str) -> None:
    html = MarkdownIt("commonmark", {"html": True}).render(harmless(text))
    assert not re.search(r"<(?=[a-z/!?])(?!/?(p|br|details|summary)>)", html), html
    assert not re.search(r"@\w|://|www\.\w|#\d|\u202e", html), html


def test_what_the_review_uses_keeps_its_form() -> None:
    table = "## Title\n\n| arm | `a` |\n|---|---|\n| x<br>y | **yes** |\n\n"
    fold = "<details><summary>2 x new</summary>\n\n- `a`\n\n</details>\n"
    assert harmless(table + fold) == table + fold
