from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.records import answered, block, failed, raw_run, store
from trnspec.benchmark.cell_size import SETS, SETS_REPEATED
from trnspec.benchmark.measure.journal import FILE_NAME, Journal, RawRun, exists, extent, read
from trnspec.benchmark.measure.records import REPEATED, to_json
from trnspec.benchmark.measure.schedule import measured_blocks


def test_records_come_back_as_written_and_half_a_line_is_cut_off(tmp_path: Path) -> None:
    written = raw_run(answered(pair=0, text="grün 🙂"), failed(pair=1))
    with Journal(tmp_path) as book:
        assert not exists(tmp_path)
        book.append(written.sessions[0])
        assert read(tmp_path).requests == (), "a line is readable as soon as it is appended"
        book.append(written.requests[0])
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"kind": "request", "run": "r')
    assert len(read(tmp_path).requests) == 1
    with Journal(tmp_path) as book:
        book.append(written.requests[1])
    found = read(tmp_path)
    assert (found.sessions, found.unusable_lines) == (written.sessions, "")
    assert list(map(to_json, found.requests)) == list(map(to_json, written.requests))


def test_what_a_line_does_not_say_has_defaults(tmp_path: Path) -> None:
    path = store(raw_run(answered()), tmp_path) / FILE_NAME
    opening, line = map(json.loads, path.read_text().splitlines())
    for key in ("round", "rate_per_s", "scheduled_s", "forced_length", "api"):
        del line[key]
    path.write_text(f"{json.dumps(opening)}\n{json.dumps(line)}\n")
    (record,) = read(tmp_path).requests
    assert (record.round, record.rate_per_s, record.forced_length, record.api) == (1, None, False, "chat")


def held_run(**changes: Any) -> RawRun:
    """A run whose loads were held, with every block and no request."""
    raw = raw_run(**changes)
    blocks = [
        block(
            arm=one.arm,
            class_=one.class_,
            concurrency=one.load.concurrency,
            round=round_,
            block=one.number,
        )
        for round_ in (1, REPEATED)
        for one in measured_blocks(raw.plan, round_)
    ]
    return replace(raw, sessions=(replace(raw.sessions[0], held=True),), blocks=tuple(blocks))


@pytest.mark.parametrize(
    ("changes", "sets"),
    [
        ({}, 2 * SETS + SETS_REPEATED),
        ({"concurrency": [2, 4]}, 4 * SETS + SETS_REPEATED),
        ({"mixed": True}, SETS + SETS_REPEATED),
    ],
    ids=str,
)
def test_a_held_run_is_complete_when_every_block_is_there(changes: dict[str, Any], sets: int) -> None:
    whole = held_run(**changes)
    assert len(whole.blocks) == 2 * sets
    planned, complete = extent(whole)
    assert complete
    assert planned >= 2 * sets * 8, "four waves of two requests in each block"
    for missing in range(len(whole.blocks)):
        blocks = (*whole.blocks[:missing], *whole.blocks[missing + 1 :])
        assert extent(replace(whole, blocks=blocks))[1] is False
    requests = tuple(answered(arm, pair, block=1) for arm in ("steady", "spec") for pair in range(99))
    assert extent(replace(whole, requests=requests, blocks=()))[1] is False, "requests alone are not a block"
