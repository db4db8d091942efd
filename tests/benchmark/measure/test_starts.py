"""Several starts of the servers in one run: the client stops between them, says so, and goes on when it sees new ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmark.measure import journal
from benchmark.measure.journal import extent
from benchmark.measure.records import REPEATED
from benchmark.measure.rounds import earlier
from tests.benchmark.conftest import SPEC, STEADY, Captured, Run
from tests.benchmark.endpoint import Endpoint, wait_until
from tests.benchmark.measure.test_run import lines, lose

ARMS = ("steady", "spec")
COUNTER = "vllm:generation_tokens_total"
WAITS = "start 2 of 2: start the servers of spec, steady again; the run then continues"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmark.measure.rounds._LOOK_S", 0.02)


@contextmanager
def once(holds: Callable[[], bool], act: Callable[[], object]) -> Iterator[None]:
    """Meanwhile, `act` once it `holds`, after the client has looked at servers that were not started again."""

    def wait() -> None:
        wait_until(holds)
        time.sleep(0.2)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join(60)


class Servers:
    """What two servers say of themselves."""

    def __init__(self, endpoint: Endpoint, says: Callable[[float, int], str]) -> None:
        self.started, self.before, self._says, self._endpoint = 1000.0, 0, says, endpoint
        for arm in ARMS:
            endpoint.metrics[arm] = lambda arm=arm: self._says(self.started, self._tokens(arm))  # type: ignore[misc]

    def _tokens(self, arm: str) -> int:
        return 13 * sum(seen.arm == arm for seen in self._endpoint.seen[self.before :])

    def again(self) -> None:
        self.before, self.started = len(self._endpoint.seen), self.started + 60


SAYS: dict[str, Callable[[float, int], str]] = {
    "both": lambda at, tokens: f"process_start_time_seconds {at}\n{COUNTER} {tokens}\n",
    "counters that begin again": lambda at, tokens: f"{COUNTER} {tokens}\n",
}


def first_start_is_over(out: Path) -> bool:
    found = lines(out) if (out / journal.FILE_NAME).exists() else []
    return [line["start"] for line in found if line["kind"] == "block"].count(1) == 4


@pytest.mark.parametrize("says", SAYS)
def test_a_second_part_begins_only_when_both_servers_were_started_again(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured, says: str
) -> None:
    servers = Servers(endpoint, SAYS[says])
    with once(lambda: first_start_is_over(out), servers.again):
        assert run("--classes raw", starts=2) == 0
    raw = journal.read(out)
    numbers = [(b.start, b.block) for b in raw.blocks if b.arm == "steady" and b.round == 1]
    assert numbers == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert {(b.start, b.block) for b in raw.blocks if b.round == REPEATED} == {(2, 1), (2, 2)}
    of_first = [r for r in raw.requests if r.start == 1]
    assert len(of_first) == servers.before, "nothing is asked while the client waits"
    warmed_up = [r.start for r in raw.requests if r.phase == "warmup"]
    assert warmed_up == [1] * 4 + [2] * 4, "each start is warmed up"
    if says == "both":
        began = [{b.server_started_unix_s for b in raw.blocks if b.start == start} for start in (1, 2)]
        assert began == [{1000.0}, {1060.0}]
    assert extent(raw)[1]
    said = capsys.readouterr().err
    assert WAITS in said
    assert "start 2 of 2: all servers were started again" in said


def test_a_run_stopped_between_starts_waits(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    servers = Servers(endpoint, SAYS["both"])
    with once(lambda: first_start_is_over(out), servers.again):
        assert run("--classes raw", starts=2) == 0
    path = out / journal.FILE_NAME
    whole = path.read_text().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines(out)) if line.get("start") == 2)
    path.write_text("".join(whole[:first]))  # stopped while it waited
    servers.before, servers.started = 0, 1000.0
    capsys.readouterr()
    kept = lines(out)
    with once(lambda: len(lines(out)) > len(kept), servers.again):
        assert run("--classes raw", starts=2) == 0
    assert WAITS in capsys.readouterr().err
    assert lines(out)[: len(kept)] == kept
    assert [line["start"] for line in lines(out)[len(kept) :] if line["kind"] == "block"] == [2] * 8
    assert extent(journal.read(out))[1]

    path.write_text("".join(whole[: first + 1]))
    assert earlier(journal.read(out).plan, out).met == 2, "a start that was only warmed up counts"
    path.write_text("".join(whole[:first]))
    servers.before, servers.started = 0, 1060.0  # started again before the run was taken up
    assert run("--classes raw", starts=2) == 0
    lose(out, 5)  # within the second start: nobody starts a server for it again
    assert run("--classes raw", starts=2) == 0
    assert "start the servers" not in capsys.readouterr().err
    assert extent(journal.read(out))[1]


def test_servers_without_metrics_are_seen_to_be_gone_and_back(run: Run, out: Path) -> None:
    first = Endpoint({"spec": SPEC, "steady": STEADY}).__enter__()
    second = Endpoint({"spec": SPEC, "steady": STEADY}, port=first.port)
    asked: list[int] = []

    def restart() -> None:
        asked.append(len(first.seen))
        first.__exit__()
        time.sleep(0.3)
        second.__enter__()

    address = " ".join(f"--arm {arm}={first.url(arm)}" for arm in ARMS)
    with once(lambda: first_start_is_over(out), restart):
        assert run(f"--classes raw {address}", starts=2) == 0
    second.__exit__()
    raw = journal.read(out)
    assert [sum(r.start == start for r in raw.requests) for start in (1, 2)] == [asked[0], len(second.seen)]
    assert extent(raw)[1]
