from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.records import answered, block, failed, raw_run, store
from trnspec.benchmark.cell_size import SETS, SETS_REPEATED
from trnspec.benchmark.errors import StorageError
from trnspec.benchmark.measure.journal import FILE_NAME, Journal, JournalReader, exists, read
from trnspec.benchmark.measure.raw_run import RawRun, extent
from trnspec.benchmark.measure.records import REPEATED, RequestRecord, to_json
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


def test_a_growing_journal_is_read_once_and_a_line_that_is_not_whole_later(tmp_path: Path) -> None:
    text = (
        store(raw_run(*(answered(pair=n) for n in range(3))), tmp_path / "whole") / FILE_NAME
    ).read_bytes()
    path, said, known = tmp_path / FILE_NAME, list[str](), []
    reader, cut = JournalReader(path), text.rindex(b"\n", 0, -1) + 9
    for more in (b"damaged\n", text[:cut], text[cut:], b"{}\n"):
        with path.open("ab") as file:
            file.write(more)
        raw = reader.read(said.append)
        known.append(len(raw.requests) if raw else None)
    assert known == [None, 2, 3, 3]
    assert said[-1].startswith("requests.jsonl: line 6 cannot be used and is left out (")
    assert (reader.unusable, reader.first_unusable[:8]) == (2, "line 1 (")


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


def truncated(path: Path) -> None:
    os.truncate(path, 10)


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_name("other"))
    path.with_name("other").replace(path)


TAKEN_AWAY: dict[str, Callable[[Path], object]] = {
    "was removed during the run, and its answers are lost": Path.unlink,
    "was removed during the run": lambda path: shutil.rmtree(path.parent),
    "was moved during the run": lambda path: path.rename(path.with_name("kept")),
    "was replaced by another file during the run": replaced,
    "was shortened during the run": truncated,
}


@pytest.mark.parametrize("then", [(answered(),), ()], ids=["next line", "end"])
@pytest.mark.parametrize("said", TAKEN_AWAY)
def test_a_journal_that_is_taken_away_refuses_the_next_line_and_the_end(
    said: str, then: tuple[RequestRecord, ...], tmp_path: Path
) -> None:
    def write() -> None:
        with Journal(tmp_path / "out") as book:
            book.append(raw_run().sessions[0])
            TAKEN_AWAY[said](book.path)
            for record in then:
                book.append(record)
                pytest.fail("it was taken")

    path = tmp_path / "out" / FILE_NAME
    with pytest.raises(StorageError, match=f"^{path}: {said}.*repeat the command"):
        write()
    if "was moved" in said:
        assert path.with_name("kept").read_bytes().count(b"\n") == 1 + len(then), "no line is lost"


def test_a_file_that_took_the_place_of_an_empty_journal_stays(tmp_path: Path) -> None:
    with Journal(tmp_path) as book:
        book.path.unlink()
        book.path.write_text("")
    assert book.path.exists()
