"""A load without ramp, drain and repetition: each arm is asked each prompt once. For tests that count requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trnspec.benchmark.measure.records import REPEATED
from trnspec.benchmark.measure.schedule import Block, Pair
from trnspec.benchmark.plan import Plan


def ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process have this load."""
    for module in ("run", "raw_run"):
        monkeypatch.setattr(f"trnspec.benchmark.measure.{module}.measured_blocks", _blocks)


def _blocks(plan: Plan, round_: int = 1, *_: int, **__: int) -> Iterator[Block]:
    for arm in plan.arms if round_ != REPEATED else ():
        pairs = (Pair(id=f"{one.class_name}/{one.id}", prompt=one, nonce="000001") for one in plan.prompts)
        class_, load = plan.loaded_with[0], plan.loads[0]
        yield Block(plan=plan, arm=arm.name, class_=class_, load=load, phase="measured", pairs=tuple(pairs))
