"""What happened while a run was on: against runs whose truth is known, and in sentences."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmark.records import WALL, answered, block, cautions, counted, raw_run, summary_of
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.stability import stability
from trnspec.benchmark.measure.records import RequestRecord


def test_another_start_of_the_servers_is_no_restart() -> None:
    """On another node the servers count from 0 again."""
    first = counted({"tokens": 0.0}, {"tokens": 10.0})
    again = replace(first, started_unix_s=first.started_unix_s + 60)
    for start, restarts in ((1, 1), (2, 0)):
        raw = replace(raw_run(answered()), blocks=(first, replace(again, start=start)))
        assert len(stability(cells_of(raw)).restarts) == restarts


def test_a_server_that_counts_from_0_again_has_restarted() -> None:
    raw = raw_run(answered())
    growing = [{"tokens": 10.0 * n, "drafts": n} for n in range(8)]
    first, second, third = (
        replace(counted(growing[n], growing[n + 1]), started_unix_s=WALL + 30 * n) for n in range(0, 6, 2)
    )
    silent = replace(second, counters_before=None, counters_after=None)
    between = replace(third, counters_before={"tokens": 0.0}, counters_after={"tokens": 5.0})
    inside = replace(second, counters_after={"tokens": 3.0, "drafts": 1.0})
    for blocks, restarts in (
        ((first, second, third), []),
        ((first, silent, third), []),
        ((first, second, between), [("spec", "2026-09-21T14:15:01Z", "2026-09-21T14:16:00Z")]),
        ((first, inside), [("spec", "2026-09-21T14:15:00Z", "2026-09-21T14:15:01Z")]),
    ):
        found = stability(cells_of(replace(raw, blocks=blocks))).restarts
        assert [(one.arm, one.after, one.before) for one in found] == restarts


def test_time_without_a_request_is_a_gap_and_a_long_request_is_none() -> None:
    def at(second: float) -> RequestRecord:
        return answered(pair=int(second), started_unix_s=WALL + second)

    raw = raw_run(at(0), at(50), at(200), at(9000))
    again = replace(raw.sessions[0], session=2, started_unix_s=WALL + 8990)
    resumed = replace(raw, sessions=(*raw.sessions, again))
    found = stability(cells_of(resumed)).gaps
    assert [(round(one.seconds), one.resumed) for one in found] == [(150, False), (8800, True)]
    (said,) = (one for one in cautions(summary_of(resumed)) if "nothing was measured" in one)
    assert said.startswith("nothing was measured for 149.2 minutes in 2 gaps, the longest from ")
    assert said.endswith("; after 1 of them the run was resumed")
    busy = replace(raw_run(at(0), at(200)), blocks=(block(0.0, 190.0),))
    assert stability(cells_of(busy)).gaps == []
    assert stability(cells_of(raw_run())).gaps == []
