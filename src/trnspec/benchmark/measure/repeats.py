"""Second answers of the baseline to its own requests: how often it differs from itself. They are in `repeats.jsonl`, in the folder of
`requests.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trnspec.benchmark.measure.records import Moment, Name, RequestRecord, RunId, Text, answers_in

FILE_NAME = "repeats.jsonl"


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The second answer of the baseline to a request, or the error if it did not answer."""

    run: RunId
    pair_id: Name
    started_unix_s: Moment
    text: Text | None = None
    error: Name | None = None
    message: Text | None = None

    @property
    def key(self) -> str:
        """The key of the request."""
        return self.pair_id


def read(folder: Path, run: str) -> tuple[Repeat, ...]:
    """The second answers in `folder` for `run`, each request once. Raises ResultsError."""
    return answers_in(folder / FILE_NAME, Repeat, lambda repeat: repeat.run == run)


def answers_of(arm: str, requests: Iterable[RequestRecord]) -> dict[str, RequestRecord]:
    """The measured answers of an arm by pair."""
    mine = (record for record in requests if record.arm == arm and record.phase == "measured")
    return {record.pair_id: record for record in mine if record.error is None and record.text is not None}


def same_text(ours: Mapping[str, RequestRecord], theirs: Mapping[str, RequestRecord]) -> list[bool]:
    """For each request that two arms answered, whether both answers are the same. Only answers to the same nonce under the same start of
    the servers are compared; another node is another start too (`RawRun.by_nodes`)."""
    both = ((ours[pair], other) for pair, other in theirs.items() if pair in ours)
    return [
        one.text == other.text for one, other in both if (one.nonce, one.start) == (other.nonce, other.start)
    ]
