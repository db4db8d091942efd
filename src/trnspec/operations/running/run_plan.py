"""The plan of a run: computed once, printed by `run --dry-run`, read by every step. It asks nothing of AWS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from infra.scale_to_zero_schedules import AGAIN_AFTER
from trnspec.core.findings import Finding, Misuse, Refusal
from trnspec.core.screen import table
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.prices import block_rates
from trnspec.experiment.cost import (
    NODE_START_H,
    RunPart,
    file_spot_rates,
    node_price,
    per_hour,
    run_parts,
    running,
)
from trnspec.experiment.run_price import file_prices, price_text
from trnspec.operations.cloud import nodegroup
from trnspec.operations.cloud.clock import stamp

LAST = ("off", "report")
"""Every run ends with these steps, even if a later run will continue it."""
_WITHOUT_NODES = ("weights", "arguments", *LAST)
_PARTS = {"nodes": "nodes start", "arms": "load"}
"""Steps whose part of the predicted price has another name."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of one run that starts at `now`."""

    experiment: Experiment
    now: datetime
    left: tuple[tuple[str, str], ...] = ()
    """Name and title of each step that is left."""
    resumes: str | None = None
    """Id of the run to continue."""
    missing: int | None = None
    """Artifacts that are missing (default: all)."""
    off: datetime | None = None
    """When the deployed schedules set the nodes to 0; None if no node has to start."""
    block: datetime | None = None
    """When the Capacity Block begins; None without a block, or if no node has to start."""
    wait_h: float = 0.0
    asked_hours: float | None = None
    """Hours that the user gave (default: 1.5 times the predicted hours)."""

    @property
    def to_compile(self) -> int:
        """Artifacts to compile."""
        return len(self.experiment.arms) if self.missing is None else self.missing

    @cached_property
    def predicted(self) -> tuple[RunPart, ...]:
        """Predicted parts of the whole run."""
        return run_parts(self.experiment, to_compile=self.to_compile)

    @property
    def predicted_h(self) -> float:
        """Trn2 hours of the whole run."""
        return sum(part.hours for part in self.predicted)

    @property
    def hours(self) -> float:
        """Hours after which the nodes are set to 0."""
        return self.asked_hours or round(self.predicted_h * 1.5, 2)

    @property
    def begins(self) -> datetime:
        """When nodes can start."""
        return max(self.now, self.block) if self.block else self.now

    @property
    def billed_h(self) -> float:
        """Maximum hours of the nodes: `hours`, or less if a schedule ends them before."""
        return min(self.hours, (self.off - self.begins) / timedelta(hours=1)) if self.off else self.hours

    @cached_property
    def left_out(self) -> Mapping[str, str]:
        """Steps that do not fit before a Capacity Block ends, with their titles: the first that does not fit, and all after it. The
        steps of a round stay together. Empty if not even one round fits; `check_time` refuses that."""
        if not (self.wait_h and self.block):
            return {}
        rounds: dict[str, list[tuple[str, str]]] = {}
        for name, title in self.left:
            if name not in LAST:
                rounds.setdefault(name.partition("-")[2] or name, []).append((name, title))
        fits_h = (self.off - self.begins) / timedelta(hours=1) if self.off else self.hours
        used_h, out = 0.0, dict[str, str]()
        for steps in rounds.values():
            used_h += sum(self.hours_of(name) for name, _ in steps)
            if out or used_h > fits_h:
                out |= dict(steps)
        first = next((name for name, _ in self.left if name.startswith("benchmark-")), None)
        return {} if first in out else out

    def hours_of(self, step: str) -> float:
        """Return the predicted Trn2 hours of a step."""
        name, _, number = step.partition("-")
        wanted = _PARTS.get(name, name)
        predicted = sum(part.hours for part in self.predicted if part.step == wanted)
        return predicted / len(self.experiment.rounds) if number else predicted

    @property
    def hours_left(self) -> float:
        return sum(self.hours_of(name) for name, _ in self.left if name not in self.left_out)

    def check_time(self) -> float:
        """Return the Trn2 hours that must be left when nodes start: 0 if the user asked for fewer than predicted.

        Raises `Refusal` if a schedule sets the nodes to 0 before."""
        until, needs_h = self.now + timedelta(hours=self.wait_h), min(self.hours, self.hours_left)
        if self.begins > until:
            raise Refusal(not_begun(self.experiment, self.begins))
        if self.off and self.off + AGAIN_AFTER < until and not self.block:
            return needs_h  # the daily switch-off is waited for
        if self.off:
            nodegroup.check_time(self.experiment, off=self.off, now=self.begins, needs_h=needs_h)
        return needs_h if self.hours_left <= self.hours else 0.0

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Each step of this run, with its nodes and predicted hours."""
        rows = []
        for name, title in self.left:
            if name not in self.left_out:
                nodes, hours = self.experiment.nodes, round(self.hours_of(name), 2)
                nodes = 0 if name in _WITHOUT_NODES else nodes
                rows.append({"step": name, "title": title, "nodes": nodes, "hours": hours})
        return rows

    @property
    def _off_first(self) -> datetime | None:
        """When a schedule ends the nodes, if that is before `hours` are over."""
        return self.off if self.billed_h < self.hours else None

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "resumes": self.resumes,
            "steps": self.rows,
            "left_out": self.left_out,
            "begins_at": stamp(self.block) if self.block else None,
            "wait_hours": round(self.wait_h, 2),
            "to_compile": self.to_compile,
            "nodes": self.experiment.nodes,
            "predicted_trn2_hours": round(self.predicted_h, 2),
            "trn2_hours_left": round(self.hours_left, 2),
            "hours": self.hours,
            "off_at": stamp(self._off_first) if self._off_first else None,
            "most_usd": self._most_usd,
            "costs": self._costs,
        }

    @property
    def text(self) -> str:
        """The plan in words: cost, a row for each step, and when the nodes are set to 0."""
        begins = f"continues run {self.resumes}" if self.resumes else "a new run"
        if self.block:
            begins += f" in the Capacity Block from {stamp(self.block)}"
        cells = [(row["title"], str(row["nodes"]), f"{row['hours']:.2f}") for row in self.rows]
        cells += [
            ("total, predicted", "", f"{self.hours_left:.2f}"),
            ("at most", "", f"{self.billed_h:.2f}"),
        ]
        ends = f"after {self.hours:g} hours"
        if self._off_first:
            ends = f"at {stamp(self._off_first)} by their schedule, before {self.hours:g} hours are over"
        made = f"{count(self.to_compile, 'artifact')} to compile, {count(self.experiment.nodes, 'Trn2 node')}"
        lines = [self._costs, f"{self.experiment.name}: {begins}, {made}"]
        lines += [*table(("step", "nodes", "hours"), cells, names=(0,)), f"nodes are set to 0 {ends}"]
        if self.left_out:
            out = ", ".join(self.left_out.values())
            lines.append(f"does not fit before the block ends and is left to a later run: {out}")
        return "\n".join(lines)

    @property
    def _most_usd(self) -> float | None:
        """The maximum cost; None if the hourly price of a node is not known."""
        capacity = self.experiment.cluster.capacity
        known = capacity.max_usd_per_hour is not None or file_spot_rates(self.experiment)
        return (
            round(self.billed_h * most_per_hour(self.experiment), 2)
            if capacity.kind == "spot" and known
            else None
        )

    @property
    def _costs(self) -> str:
        """The maximum cost in one sentence. AWS publishes no price for a part of a block, and none on demand."""
        kind, hours = self.experiment.cluster.capacity.kind, f"{self.billed_h:.2f} Trn2 hours at most"
        if kind in ("capacity-block", "reservation"):
            return f"{hours}, of a {kind} that is paid already"
        if self._most_usd is not None:
            rate = f"${most_per_hour(self.experiment):.2f} an hour"
            return f"{hours}: ${self._most_usd:.2f} at {rate}; spot can rise, the hours are the limit"
        unknown = "No spot price of its zones is published"
        if kind != "spot":
            unknown = "AWS publishes no on-demand price"
        costs = price_text(file_prices(self.experiment, self.predicted_h))
        return f"{hours}. {unknown}. A first run costs {costs}"


def most_per_hour(experiment: Experiment) -> float:
    """Return dollars per hour while nodes run. A spot node counts with `max_usd_per_hour` or the highest published price, a block or a
    reservation with the highest published rate."""
    capacity = experiment.cluster.capacity
    rates = block_rates(experiment.instance.name)
    if capacity.kind in ("spot", "on-demand"):
        rates = file_spot_rates(experiment) if capacity.kind == "spot" else []
    published = [rate.high_usd or rate.usd_per_hour for rate in rates]
    quoted = node_price(experiment).usd_per_hour
    each = capacity.max_usd_per_hour or max(published, default=quoted)
    return per_hour(running(experiment)) + experiment.nodes * (each - quoted)


def paid_hours(experiment: Experiment, usd: float) -> float:
    """Return the hours of all nodes that `usd` pays at the highest price of the file.

    Raises `Misuse` if no price is known, or if the nodes could not even start."""
    capacity, where, name = experiment.cluster.capacity, f"--max-usd {usd:g}", experiment.instance.name
    if capacity.kind == "spot" and capacity.max_usd_per_hour is None and not file_spot_rates(experiment):
        none = f"no spot price of {name} in {listed(experiment.cluster.availability_zones)} is published"
        raise Misuse(f"{where}: {none}; write cluster.capacity.max_usd_per_hour, or give --hours")
    if capacity.kind == "on-demand":
        raise Misuse(f"{where}: no on-demand price of {name} is published; give --hours")
    most = most_per_hour(experiment)
    hours = math.floor(100 * usd / most) / 100
    if hours < NODE_START_H:
        minutes = f"{60 * hours:.0f} minutes at ${most:.2f} an hour"
        raise Misuse(f"{where}: pays {minutes}, and nodes take {60 * NODE_START_H:.0f} to start; give more")
    return hours


def not_begun(experiment: Experiment, start: datetime) -> Finding:
    """Return the finding about a block that begins too late for this run."""
    remedy = f"run this again after that, or with --wait that reaches beyond {stamp(start)}"
    return Finding(block_name(experiment), None, f"begins at {stamp(start)}", remedy)


def block_name(experiment: Experiment) -> str:
    return f"capacity block {experiment.cluster.capacity.reservation_id}"
