"""Records made by hand, for tests of what is computed from them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmark.conftest import plan_content
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.decision import advised
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.summary import summarise
from trnspec.benchmark.measure.journal import FILE_NAME, Journal, read
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import (
    COUNTED_ACCEPTED,
    COUNTED_DRAFTS,
    COUNTED_PER_POSITION,
    BlockRecord,
    Record,
    RequestRecord,
    RunRecord,
)
from trnspec.benchmark.plan import from_dict

WALL = 1_790_000_040.0


def _asked(arm: str, pair: int) -> dict[str, Any]:
    return {
        "run": "r1",
        "arm": arm,
        "class_": "chat",
        "concurrency": 2,
        "prompt_id": f"chat-{pair % 8}",
        "nonce": "abc123",
        "pair_id": f"chat/c2/{pair:04d}",
        "phase": "measured",
        "started_unix_s": WALL + pair,
    }


def answered(
    arm: str = "steady", pair: int = 0, *, chunk_s: tuple[float, ...] = (0.1, 0.2, 0.3), **changes: Any
) -> RequestRecord:
    """An answer whose chunks came at `chunk_s`, one token each unless said otherwise."""
    tokens = changes.pop("chunk_tokens", (1,) * len(chunk_s))
    total = changes.get("completion_tokens") or sum(tokens or ()) or len(chunk_s)
    text = changes.pop("text", "a b c" + " word" * (total - 3))
    values: dict[str, Any] = {
        **_asked(arm, pair),
        "ttft_s": chunk_s[0],
        "e2e_s": chunk_s[-1],
        "chunk_s": chunk_s,
        "chunk_tokens": tokens,
        "stream_chunks": len(chunk_s) + 1,
        "prompt_tokens": 9,
        "completion_tokens": sum(tokens) if tokens else None,
        "finish_reason": "stop",
        "token_source": "usage-per-chunk",
        "text": text,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    return RequestRecord(**(values | changes))


def failed(arm: str = "steady", pair: int = 0, error: str = "timeout", **changes: Any) -> RequestRecord:
    return RequestRecord(**(_asked(arm, pair) | changes), error=error, message="because")


def block(start_s: float = 0.0, duration_s: float = 1.0, *, arm: str = "spec", **changes: Any) -> BlockRecord:
    """A block of the cell of `answered`, begun `start_s` after the run."""
    values: dict[str, Any] = {
        "run": "r1",
        "class_": "chat",
        "concurrency": 2,
        "rate_per_s": None,
        "round": 1,
        "client_lag_s": 0.001,
    }
    started = WALL + start_s
    return BlockRecord(arm=arm, started_unix_s=started, duration_s=duration_s, **(values | changes))


def counted(before: dict[str, float] | None, after: dict[str, float] | None) -> BlockRecord:
    """A block around which the server's counters were read."""
    return block(counters_before=before, counters_after=after)


def counted_drafts(
    *, steps: float, accepted: float, survivors: Sequence[float] = (), begun: float = 0.0
) -> BlockRecord:
    """A block in which a server counted that; `survivors`: steps that accepted draft 1, 2, ...; `begun`: what it had before."""
    after = {COUNTED_DRAFTS: begun + steps, COUNTED_ACCEPTED: begun + accepted}
    after |= {f"{COUNTED_PER_POSITION}/{place}": begun + count for place, count in enumerate(survivors)}
    return counted(dict.fromkeys(after, begun), after)


def raw_run(*requests: RequestRecord, **plan_changes: Any) -> RawRun:
    """A run of the small plan that holds `requests`."""
    plan = from_dict(plan_content(**plan_changes))
    opening = RunRecord(
        run="r1",
        session=1,
        started_unix_s=WALL,
        provenance="measured",
        plan=plan,
        plan_sha256=plan.sha256(),
        owned_by={"steady": "vllm", "spec": "vllm"},
        client="0",
        python="3.11",
    )
    return RawRun((opening,), requests)


def held(raw: RawRun) -> RawRun:
    """The same run, of a client that holds a load while it measures."""
    return replace(raw, sessions=tuple(replace(one, held=True) for one in raw.sessions))


def emulated(raw: RawRun, **changes: Any) -> RawRun:
    """The same run, of arms that say they are emulated."""
    sessions = [replace(one, provenance="emulated", **changes) for one in raw.sessions]
    return replace(raw, sessions=tuple(sessions))


def recorded_run(name: str, folder: Path) -> RawRun:
    """One of the runs recorded on an H200 (tests/data/h200), unpacked below `folder`."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    packed = Path(__file__).parents[1] / "data" / "h200" / name / f"{FILE_NAME}.gz"
    (folder / name / FILE_NAME).write_bytes(gzip.decompress(packed.read_bytes()))
    return read(folder / name)


def store(raw: RawRun, folder: Path) -> Path:
    """`raw` as the journal of `folder`."""
    with Journal(folder) as book:
        records: tuple[Record, ...] = (*raw.sessions, *raw.requests, *raw.blocks)
        for record in records:
            book.append(record)
    return folder


def result_of(raw: RawRun) -> Result:
    return summarise(cells_of(raw))


def changed(result: Result, **parts: Any) -> Result:
    """The result with other parts, and the advice that follows."""
    return advised(Result.model_validate(result.model_dump() | parts))


def cautions(found: Mapping[str, Any]) -> list[str]:
    """What the evidence of a summary says where it is not fine."""
    return [row["says"] for row in found["evidence"] if row["outcome"] in ("caution", "withheld")]


def summary_of(raw: RawRun) -> dict[str, Any]:
    """The result as in summary.json."""
    return result_of(raw).model_dump(mode="json")
