"""Whether a line of the journal is one of its run: the type of every field, and whether the plan knows of what it names.

An answer with impossible numbers is another matter: it was asked, and counts as failed (`benchmark.measure.plausible`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from reprlib import repr as shown
from typing import Any

from benchmark.errors import PlanError
from benchmark.measure.counts import MOST_TOKENS
from benchmark.measure.plausible import believed
from benchmark.measure.records import BlockRecord, Record, RequestRecord, RunRecord
from benchmark.plan import Load, Plan, from_dict, without_credentials

_MOST_SECONDS = 1e7
"""No request and no block takes so long."""
_MOST_UNIX_S = 1e11
_MOST_COUNTED = 1e18
_MOST_ROUNDS = 1_000_000
_MOST_NAME = 1000

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME and value.isprintable()


def _run_id(value: Any) -> bool:
    return _name(value) and "/" not in value and not value.startswith(".")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_name, value))


def _sequence(value: Any) -> bool:
    """Reading has packed it, which needs numbers."""
    return isinstance(value, (array, tuple))


def _between(minimum: float, maximum: float) -> Check:
    return lambda value: type(value) in (int, float) and minimum <= value <= maximum


def _whole(minimum: int, maximum: int) -> Check:
    return lambda value: type(value) is int and minimum <= value <= maximum


def _one_of(*known: str) -> Check:
    return lambda value: isinstance(value, str) and value in known


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _object_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_SECONDS, _MOMENT = _between(0, _MOST_SECONDS), _between(0, _MOST_UNIX_S)
_PLACE: dict[str, Check] = {
    "run": _run_id,
    "arm": _name,
    "class_": _name,
    "concurrency": _or_none(_whole(1, MOST_TOKENS)),
    "rate_per_s": _or_none(_between(0, _MOST_SECONDS)),
    "round": _whole(1, _MOST_ROUNDS),
    "started_unix_s": _MOMENT,
}
_CHECKS: dict[type[Record], dict[str, Check]] = {
    RunRecord: {
        "run": _run_id,
        "sitting": _whole(1, _MOST_ROUNDS),
        "started_unix_s": _MOMENT,
        "provenance": _one_of("measured", "emulated"),
        "plan": lambda value: isinstance(value, dict),
        "plan_sha256": _name,
        "owned_by": _object_of(_text),
        "timeout_s": _SECONDS,
        "client": _name,
        "python": _name,
        "cautions": _or_none(_texts),
        "made_up": _or_none(_object_of(_texts)),
    },
    BlockRecord: {
        **_PLACE,
        "duration_s": _SECONDS,
        "client_lag_s": _SECONDS,
        "counters_before": _or_none(_object_of(_between(0, _MOST_COUNTED))),
        "counters_after": _or_none(_object_of(_between(0, _MOST_COUNTED))),
    },
    RequestRecord: {
        **_PLACE,
        "prompt_id": _name,
        "nonce": _text,
        "pair_id": _name,
        "phase": _one_of("warmup", "measured"),
        "chunk_s": _sequence,
        "chunk_tokens": _or_none(_sequence),
        "finish_reason": _or_none(_text),
        "token_source": _or_none(_name),
        "text_sha256": _or_none(_text),
        "text": _or_none(_text),
        "spec_stats": _or_none(lambda value: isinstance(value, dict)),
        "error": _or_none(_name),
        "message": _or_none(_text),
        "scheduled_s": _or_none(_SECONDS),
        "forced_length": lambda value: isinstance(value, bool),
        "api": _one_of("chat", "completions"),
    },
}


def without_secrets(record: RunRecord) -> RunRecord:
    """`record` without user names and passwords in its arms' addresses, as older runs may hold them."""
    arms = record.plan.get("arms") if isinstance(record.plan, dict) else None
    if not isinstance(arms, list):
        return record
    known = [
        {**arm, "url": without_credentials(arm.get("url"))} if isinstance(arm, dict) else arm for arm in arms
    ]
    return replace(record, plan={**record.plan, "arms": known})


def _plan(record: RunRecord) -> Plan:
    """Raises ValueError."""
    try:
        return from_dict(record.plan)
    except PlanError as error:
        raise ValueError(f"plan: {str(error)[:200]}") from error


def _check_fields(record: Record) -> None:
    for name, holds in _CHECKS[type(record)].items():
        if not holds(value := getattr(record, name)):
            raise ValueError(f"{name.rstrip('_')} is {shown(value)}")


class Belonging:
    """What the run that a journal begins with lets follow."""

    def __init__(self, opening: RunRecord) -> None:
        """Raises ValueError where its plan is not one."""
        _check_fields(opening)
        plan = _plan(opening)
        self._opening, self._identity = opening, plan.sha256()
        self._arms = {arm.name for arm in plan.arms}
        self._classes, self._loads = set(plan.classes), set(plan.loads)
        self._rounds = plan.rounds if plan.duration_s is None else _MOST_ROUNDS
        self._limits = {prompt.id: plan.most_tokens(prompt) for prompt in plan.prompts}
        self._most_tokens = max(self._limits.values())
        self._seen: set[int] = set()

    def checked(self, record: Record) -> Record:
        """`record` as it is used. Raises ValueError where it is not of the run, or is there already."""
        _check_fields(record)
        if isinstance(record, RequestRecord):
            record = believed(record, self._limits.get(record.prompt_id, self._most_tokens))
        if record.run != self._opening.run:
            raise ValueError(f"run is {shown(record.run)}, the journal is of {self._opening.run}")
        if isinstance(record, RunRecord):
            record = without_secrets(record)
            if _plan(record).sha256() != self._identity or record.provenance != self._opening.provenance:
                raise ValueError("a sitting with another plan or provenance")
            return record
        for name, known in (("arm", self._arms), ("class_", self._classes)):
            if getattr(record, name) not in known:
                raise ValueError(
                    f"{name.rstrip('_')} is {shown(getattr(record, name))}, which the plan does not have"
                )
        if isinstance(record, BlockRecord) or record.phase == "measured":
            self._check_place(record)
        if isinstance(record, RequestRecord) and record.phase == "measured":
            identity = hash((record.arm, record.pair_id))
            if identity in self._seen:
                raise ValueError(f"pair_id is {shown(record.pair_id)}, which the arm was asked already")
            self._seen.add(identity)
        return record

    def _check_place(self, record: RequestRecord | BlockRecord) -> None:
        load = (
            Load(concurrency=record.concurrency)
            if record.rate_per_s is None
            else Load(rate_per_s=float(record.rate_per_s))
        )
        if load not in self._loads:
            raise ValueError(f"the load is {load}, which the plan does not have")
        if record.round > self._rounds:
            raise ValueError(f"round is {record.round}, of {self._rounds}")
