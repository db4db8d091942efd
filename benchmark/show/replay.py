"""How to run it again: the plan as it was carried out, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.measure.journal import RawRun
from benchmark.writing import write_whole

PLAN_FILE = "plan-as-run.json"


def write(raw: RawRun, folder: Path) -> Path:
    """Store the run's plan, with all that the command line changed about it. Raises StorageError."""
    return write_whole(folder / PLAN_FILE, json.dumps(raw.plan.to_dict(), indent=1) + "\n")


def command(raw: RawRun) -> str:
    """The command that makes the same requests; each arm's address may be given anew."""
    opening = raw.sittings[0]
    return f"python -m benchmark run --plan {PLAN_FILE} --timeout {opening.timeout_s:g} --out results/again"


def facts(raw: RawRun, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of what decides about the numbers."""
    run, opening = summary["run"], raw.sittings[0]
    owners = ", ".join(f"{arm}: {owner}" for arm, owner in opening.owned_by.items())
    known = [
        ("run", run["id"]),
        ("plan, SHA-256", run["plan_sha256"]),
        ("model", run["model"]),
        ("arms", "; ".join(map(_arm, run["arms"]))),
        ("endpoints' owner, as they say", owners),
        ("started, finished", f"{run['started']}, {run['finished']}"),
        ("sittings", str(run["sittings"])),
        ("requests per cell, warm-up per arm", f"{run['requests_per_cell']}, {run['warmup']}"),
        ("rounds", run.get("rounds")),
        ("seed", str(run["seed"])),
        ("temperature, most tokens", f"{run['temperature']:g}, {run['max_tokens']}"),
        ("answers forced to that length", {True: "yes", False: "no"}.get(run.get("ignore_eos"))),
        ("added to each request", json.dumps(run["extra_body"]) if run["extra_body"] else None),
        ("timeout of a request", f"{run['timeout_s']:g} s"),
        ("token counts from", run["token_source"]),
        ("client, Python", f"{run['client']}, {run['python']}"),
    ]
    return [(name, str(value)) for name, value in known if value is not None]


def _arm(arm: Mapping[str, Any]) -> str:
    if not arm["speculative_tokens"]:
        return f"{arm['name']}: plain decoding"
    drafted, most = arm["speculative_tokens"], arm["max_tokens_per_step"]
    return f"{arm['name']}: {drafted} speculative tokens, at most {most} tokens a step"
