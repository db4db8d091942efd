"""After the load: the baseline is asked again where answers differ, by the real client on a real server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.benchmark.conftest import Captured, plan_content, reported
from tests.benchmark.endpoint import DONE, Endpoint, Seen, choice, event
from tests.benchmark.measure.once import ask_once
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure import journal, questions
from trnspec.benchmark.measure.progress import Progress

TEXT = "Ann and her younger brother saw the old mill by the river"
OTHER = "Ann and her younger brother saw the old mill by a lake"


class Writers(Endpoint):
    """A server whose arms write known texts."""

    def __init__(self, *, second: str | None = None, spec: str = OTHER) -> None:
        super().__init__({})
        self.texts, self._second, self._before = {"steady": TEXT, "spec": spec}, second, set[str]()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """The text of the arm; `second` if the same was asked before."""
        arm, body = request.match_info["arm"], await request.json()
        self.seen.append(Seen(arm, body, 0.0))
        known = f"{arm} {json.dumps(body)}"
        text = self._second if self._second and known in self._before else self.texts[arm]
        self._before.add(known)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = text.split(" ")
        for tokens, word in enumerate(words, start=1):
            last = tokens == len(words)
            await response.write(
                event(choice({"content": word if last else f"{word} "}, "stop" if last else None), tokens)
            )
            await asyncio.sleep(0.004)
        await response.write(DONE)
        return response


Start = Callable[..., Writers]


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_once(monkeypatch)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server of a baseline and a treatment that writes something else."""
    with ExitStack() as running:
        yield lambda **texts: running.enter_context(Writers(**texts))


def run(server: Writers, out: Path, *options: str, prompts: int = 1, **changes: Any) -> int:
    """So many prompts, each asked once."""
    asked = [
        {"id": f"chat-{i}", "class": "chat", "messages": [{"role": "user", "content": f"Go on, {i}."}]}
        for i in range(prompts)
    ]
    once = {"prompts": asked, "requests": prompts, "concurrency": [1], "warmup": 0, "timeout_s": 5}
    content = plan_content(**(once | changes))
    for arm in content["arms"]:
        arm["url"] = server.url(arm["name"])
    plan = out.parent / "plan.json"
    plan.write_text(json.dumps(content))
    words = [
        "run",
        "--plan",
        str(plan),
        "--out",
        str(out),
        "--questions",
        "none",
        "--exit-zero",
    ]
    return main([*words, *options])


def without_repeats(out: Path, kept: int = 0, cut: bytes = b"") -> None:
    """Take all second answers but the first ones out of the journal."""
    path = out / journal.FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    repeats = [line for line in lines if line.startswith(b'{"kind":"repeat"')]
    others = [line for line in lines if line not in repeats]
    path.write_bytes(b"".join([*others, *repeats[:kept], cut]))


def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())["losslessness"]
    return found


@pytest.mark.parametrize(("second", "differing"), [(OTHER, 8), (None, 0)])
def test_the_baselines_own_differences_are_the_floor(
    start: Start, out: Path, second: str | None, differing: int
) -> None:
    assert run(start(second=second), out, prompts=8) == 0
    itself, (treatment,) = told(out)["baseline"], told(out)["treatments"]
    assert (itself["n_pairs"], itself["differing"]) == (8, differing)
    assert treatment["differing"] == 8
    assert treatment["more_than_baseline"] is (differing == 0)


def test_no_more_is_asked_than_is_said(start: Start, out: Path, capsys: Captured) -> None:
    server = start()
    assert run(server, out, prompts=8) == 0
    assert (
        "answers differ in 8 pairs; repeating requests to steady, to see how often it differs from itself, for 600 s at most"
        in capsys.readouterr().err
    )
    without_repeats(out)
    given: dict[str, Any] = {"out": out, "progress": Progress(sys.stderr)}
    asyncio.run(questions.ask_again(journal.read(out), **given, limit_s=1e-6))
    assert "stopped repeating requests to steady" in capsys.readouterr().err
    asyncio.run(questions.ask_again(journal.read(out), **given, maximum=2))
    assert reported(out)
    assert len(server.seen) == 3 * 8 + 2
    assert told(out)["baseline"]["n_pairs"] == 2


def test_what_is_measured_has_a_summary_before_anything_is_asked_again(
    start: Start, out: Path, capsys: Captured
) -> None:
    server = start(second=OTHER)
    assert run(server, out, "--no-repeats", prompts=8) == 0
    assert (len(server.seen), told(out)["baseline"]) == (16, None)
    assert reported(out, "--all")
    assert (
        "The baseline was not asked again, so it is not known how often it differs from itself."
        in " ".join(capsys.readouterr().out.split())
    )
    assert run(server, out, prompts=8) == 0
    assert (len(server.seen), told(out)["baseline"]["n_pairs"]) == (16 + 8, 8)


def test_where_answers_are_equal_or_drawn_nothing_is_asked_again(start: Start, out: Path) -> None:
    run(start(spec=TEXT), out)
    run(start(), out.parent / "drawn", temperature=0.7)
    run(start(), out.parent / "overridden", extra_body={"temperature": 1})
    for folder in (out, out.parent / "drawn", out.parent / "overridden"):
        assert journal.read(folder).repeats == ()
    assert told(out)["treatments"][0]["equal"] == 1
    assert told(out.parent / "drawn") is None


def test_interrupted_it_goes_on_where_it_stopped(start: Start, out: Path) -> None:
    server = start()
    run(server, out, prompts=8)
    before, requests = told(out), len(server.seen)
    without_repeats(out, kept=3, cut=b'{"kind":"repeat","run":')
    run(server, out, prompts=8)
    assert len(server.seen) == requests + 5
    assert told(out) == before


def test_a_server_that_is_gone_after_the_load_leaves_the_run_as_it_is(out: Path, capsys: Captured) -> None:
    with Writers() as server:
        run(server, out, prompts=8)
    without_repeats(out)
    assert run(server, out, prompts=8) == 0
    said = capsys.readouterr().err
    assert "connect_refused" in said
    assert "repeat the command to continue" in said
    assert told(out)["baseline"] is None


@pytest.mark.parametrize(
    "damaged", [b"{", b"[]", b'{"kind": "repeat"}', b'{"kind": ["repeat"]}', b'{"kind": "repeat", "run": 7}']
)
def test_everything_is_made_again_from_the_journal(start: Start, out: Path, damaged: bytes) -> None:
    run(start(second=OTHER), out, prompts=3)
    before = told(out)
    with (out / journal.FILE_NAME).open("ab") as file:
        file.write(damaged + b"\n")
    (out / "summary.json").unlink()
    assert reported(out)
    assert told(out) == before
