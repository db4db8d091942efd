from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from benchmark.measure.journal import FILE_NAME, Journal, exists, extent, read
from benchmark.measure.records import to_json
from tests.benchmark.records import answered, block, failed, raw_run, store


def test_records_come_back_as_they_were_written_and_half_a_line_of_a_killed_process_is_cut_off(
    tmp_path: Path,
) -> None:
    written = raw_run(answered(pair=0, text="grün 🙂"), failed(pair=1))
    with Journal(tmp_path) as book:
        assert not exists(tmp_path)
        book.append(written.sittings[0])
        assert read(tmp_path).requests == (), "a line is readable as soon as it is appended"
        book.append(written.requests[0])
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"kind": "request", "run": "r')
    assert len(read(tmp_path).requests) == 1
    with Journal(tmp_path) as book:
        book.append(written.requests[1])
    found = read(tmp_path)
    assert (found.sittings, found.left_out) == (written.sittings, "")
    assert list(map(to_json, found.requests)) == list(map(to_json, written.requests))


def test_a_journal_of_an_older_version_is_read_with_defaults(tmp_path: Path) -> None:
    path = store(raw_run(answered()), tmp_path) / FILE_NAME
    opening, line = map(json.loads, path.read_text().splitlines())
    for key in ("round", "rate_per_s", "scheduled_s", "forced_length", "api", "spec_stats"):
        del line[key]
    line["speculation"] = {"num_spec_steps": 3}
    path.write_text(f"{json.dumps(opening)}\n{json.dumps(line)}\n")
    (record,) = read(tmp_path).requests
    assert (record.round, record.rate_per_s, record.forced_length, record.api) == (1, None, False, "chat")
    assert record.spec_stats == {"num_spec_steps": 3}


def test_a_plan_with_a_duration_is_complete_when_its_time_is_over_and_its_round_whole() -> None:
    prompts = [{"id": "a", "class": "chat", "prompt": "p"}]
    records = [answered(arm, pair, round=pair + 1) for arm in ("steady", "spec") for pair in (0, 1)]
    for requests, blocks_s, complete in ((4, (60, 60), True), (4, (60,), False), (3, (120,), False)):
        raw = raw_run(*records[:requests], duration_s=100, requests=1, prompts=prompts)
        blocks = tuple(block(duration_s=duration_s) for duration_s in blocks_s)
        assert extent(replace(raw, blocks=blocks)) == (4, complete)
