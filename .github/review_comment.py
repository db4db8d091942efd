"""Post the review of a pull request as one comment of it: `.github/workflows/review-comment.yaml` runs this, from main.

The review comes from a job that ran the pull request's code, so anyone may have written it. Here it is text: of limited size,
without links, pictures and HTML, and without words that call a person or start a build. Needs nothing but Python.
"""

import io
import json
import os
import re
import sys
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

MARK = "<!-- review of this pull request -->"
MOST_BYTES = 1_000_000
MOST_CHARACTERS = 65_000
"""GitHub takes 65,536 in a comment."""
_ACTS = re.compile(r"<(?!(?:/?(?:details|summary)|br)>)|[@\]]|&(?=[#\w])|:(?=//)|#(?=\d)|(?<=www)\.", re.I)


def main() -> int:
    """Write the comment, or write it again; 1 where there is nothing to post or nowhere to post it."""
    run = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))["workflow_run"]
    repository, commit = f"/repos/{os.environ['GITHUB_REPOSITORY']}", run["head_sha"]
    try:
        owner = run["head_repository"]["owner"]["login"]
        head = urllib.parse.urlencode({"state": "open", "head": f"{owner}:{run['head_branch']}"})
        number, *_ = (p["number"] for p in _json(f"{repository}/pulls?{head}") if p["head"]["sha"] == commit)
        listed = _json(f"{repository}/actions/runs/{run['id']}/artifacts?name=review")["artifacts"]
        newest = max(one["id"] for one in listed if one["size_in_bytes"] <= MOST_BYTES)
        packed = zipfile.ZipFile(io.BytesIO(_ask(f"{repository}/actions/artifacts/{newest}/zip")))
        review = packed.open("review.md").read(MOST_BYTES).decode(errors="replace")
    except (LookupError, TypeError, ValueError, zipfile.BadZipFile) as error:
        print(
            f"{commit}: no open pull request, or no review of at most {MOST_BYTES} bytes: {error!r}",
            file=sys.stderr,
        )
        return 1
    origin = f"Of commit {commit}, written by a job that ran its code: this is what the pull request says of itself."
    body = {"body": f"{MARK}\n{origin}\n\n{harmless(review)}"[:MOST_CHARACTERS]}
    # The first review comes soon after the pull request, so its comment is among the first hundred.
    ours = [
        one["id"] for one in _json(f"{repository}/issues/{number}/comments?per_page=100") if _is_ours(one)
    ]
    where = f"comments/{ours[0]}" if ours else f"{number}/comments"
    _ask(f"{repository}/issues/{where}", method="PATCH" if ours else "POST", body=body)
    return 0


def _is_ours(comment: Any) -> bool:
    return bool(comment["user"]["login"] == "github-actions[bot]" and comment["body"].startswith(MARK))


def harmless(text: str) -> str:
    """`text` without characters that cannot be seen; a space of no width follows each one that GitHub acts on."""
    seen = "".join(c for c in text if c.isprintable() or c == "\n")
    return _ACTS.sub(lambda match: f"{match[0]}\u200b", seen)


def _json(path: str) -> Any:
    return json.loads(_ask(path))


def _ask(path: str, *, method: str = "GET", body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    request = urllib.request.Request(f"{os.environ['GITHUB_API_URL']}{path}", data, headers, method=method)
    # Artifacts are redirected to another host, which must not get the token.
    request.add_unredirected_header("Authorization", f"Bearer {os.environ['GITHUB_TOKEN']}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: bytes = answer.read(20 * MOST_BYTES)
    return said


if __name__ == "__main__":
    sys.exit(main())
