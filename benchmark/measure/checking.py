"""Whether a line of the journal is one of its run: whether the plan knows of what it names.

An answer with impossible numbers is another matter: it was asked, and counts as failed (`benchmark.measure.plausible`).
"""

from __future__ import annotations

from reprlib import repr as shown

from benchmark.measure.plausible import believed
from benchmark.measure.records import MOST_ROUNDS, BlockRecord, Record, RequestRecord, RunRecord
from benchmark.plan import Load


class Belonging:
    """What the run that a journal begins with lets follow."""

    def __init__(self, opening: RunRecord) -> None:
        plan = opening.plan
        self._opening, self._identity = opening, plan.sha256()
        self._arms = {arm.name for arm in plan.arms}
        self._classes, self._loads = set(plan.classes), set(plan.loads)
        self._rounds = plan.rounds if plan.duration_s is None else MOST_ROUNDS
        self._limits = {prompt.id: plan.most_tokens(prompt) for prompt in plan.prompts}
        self._most_tokens = max(self._limits.values())
        self._seen: set[int] = set()

    def checked(self, record: Record) -> Record:
        """`record` as it is used. Raises ValueError where it is not of the run, or is there already."""
        if isinstance(record, RequestRecord):
            record = believed(record, self._limits.get(record.prompt_id, self._most_tokens))
        if record.run != self._opening.run:
            raise ValueError(f"run is {shown(record.run)}, the journal is of {self._opening.run}")
        if isinstance(record, RunRecord):
            if record.plan.sha256() != self._identity or record.provenance != self._opening.provenance:
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
            else Load(rate_per_s=record.rate_per_s)
        )
        if load not in self._loads:
            raise ValueError(f"the load is {load}, which the plan does not have")
        if record.round > self._rounds:
            raise ValueError(f"round is {record.round}, of {self._rounds}")
