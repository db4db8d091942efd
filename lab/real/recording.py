"""What a real server sends, written down as test data: streams and metrics, with and without speculation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.real.probe import ask

MAX_TOKENS = 48


def record(urls: Mapping[str, str], bodies: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Ask each arm at `urls` every one of `bodies`; a file for each arm, its answers in order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_record(arm, url, bodies, folder / f"{arm}.json") for arm, url in urls.items()]


def _record(arm: str, url: str, bodies: Sequence[dict[str, Any]], path: Path) -> Path:
    answers = []
    for body in bodies:
        asked = ask(url, {**body, "max_tokens": MAX_TOKENS})
        answers.append(
            {
                "request": asked.request,
                "stream": list(asked.lines),
                "metrics_before": _of_vllm(asked.before),
                "metrics_after": _of_vllm(asked.after),
            }
        )
    content = {"arm": arm, "answers": answers}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _of_vllm(metrics: str) -> list[str]:
    """vLLM's own lines without histogram buckets, which are many and say nothing more here."""
    return [
        line
        for line in metrics.splitlines()
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("vllm:") and "_bucket{" not in line
    ]
