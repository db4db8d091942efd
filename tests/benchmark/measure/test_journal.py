from __future__ import annotations

import json
from pathlib import Path

from benchmark.measure.journal import Journal, RawRun, exists, extent, read
from benchmark.measure.records import BlockRecord, to_json
from tests.benchmark.records import answered, block, failed, raw_run


def write_start(folder: Path) -> None:
    with Journal(folder) as book:
        book.append(raw_run().sittings[0])
        book.append(answered(pair=0, text="grün 🙂"))


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_start(tmp_path)
    with Journal(tmp_path) as book:
        book.append(failed(pair=1))
    written, found = raw_run(answered(pair=0, text="grün 🙂"), failed(pair=1)), read(tmp_path)
    assert found.sittings == written.sittings
    assert list(map(to_json, found.requests)) == list(map(to_json, written.requests))


def test_a_line_is_readable_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with Journal(tmp_path) as book:
        assert not exists(tmp_path)
        book.append(raw_run().sittings[0])
        assert read(tmp_path).requests == ()


def test_what_a_killed_process_left_of_a_line_is_read_over_and_cut_off(tmp_path: Path) -> None:
    write_start(tmp_path)
    with (tmp_path / "requests.jsonl").open("ab") as file:
        file.write(b'{"kind": "request", "run": "r')
    assert len(read(tmp_path).requests) == 1
    with Journal(tmp_path) as book:
        book.append(answered(pair=1))
    assert [record.pair_id for record in read(tmp_path).requests] == ["chat/c2/0000", "chat/c2/0001"]


def test_a_journal_of_an_older_version_is_read_with_defaults(tmp_path: Path) -> None:
    write_start(tmp_path)
    path = tmp_path / "requests.jsonl"
    opening, line = map(json.loads, path.read_text().splitlines())
    for key in ("round", "rate_per_s", "scheduled_s", "forced_length", "api"):
        del line[key]
    line["speculation"] = {"num_spec_steps": 3}
    del line["spec_stats"]
    path.write_text(f"{json.dumps(opening)}\n{json.dumps(line)}\n")
    (record,) = read(tmp_path).requests
    assert (record.round, record.rate_per_s, record.forced_length, record.api) == (1, None, False, "chat")
    assert record.spec_stats == {"num_spec_steps": 3}


def of(raw: RawRun, *blocks: BlockRecord) -> tuple[int, bool]:
    return extent(RawRun(raw.sittings, raw.requests, blocks))


def test_rounds_multiply_what_is_planned() -> None:
    raw = raw_run(answered(), rounds=3, requests=6)
    assert of(raw) == (2 * 2 * 6 * 3, False)


def test_a_plan_with_a_duration_is_complete_when_its_time_is_over_and_its_round_whole() -> None:
    prompts = [{"id": "a", "class": "chat", "prompt": "p"}]
    records = [answered(arm, pair, round=pair + 1) for arm in ("steady", "spec") for pair in (0, 1)]
    raw = raw_run(*records, duration_s=100, requests=1, prompts=prompts)
    assert of(raw, block(duration_s=60.0), block(duration_s=60.0)) == (4, True)
    assert of(raw, block(duration_s=60.0)) == (4, False)
    assert of(
        raw_run(*records[:3], duration_s=100, requests=1, prompts=prompts), block(duration_s=120.0)
    ) == (4, False)
