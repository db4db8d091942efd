"""Reading prompts alone: a JSON object a line, `{"id", "class", "prompt" | "messages", "max_tokens"?}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark.errors import PlanError
from benchmark.reading import json_of, text_of

_KEYS = ("id", "class", "prompt", "messages", "max_tokens")
"""What a line is read for; people's files have more."""


def load(path: Path) -> list[dict[str, Any]]:
    """The lines of the file at `path` as a plan has them, yet unchecked. Raises PlanError."""
    try:
        lines = text_of(path).split("\n")
    except OSError as error:
        raise PlanError(
            f"{path}: cannot be read ({error.strerror}); name an existing file of prompts"
        ) from error
    except ValueError as error:
        raise PlanError(f"{path}: cannot be read ({error}); save fewer prompts as UTF-8") from error
    found = [_prompt(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise PlanError(f"{path}: holds no prompt; a prompt is one JSON object a line")
    return found


def _prompt(line: str, where: str) -> dict[str, Any]:
    try:
        content = json_of(line)
    except ValueError as error:
        raise PlanError(f"{where}: not JSON ({error}); a prompt is one JSON object a line") from error
    if not isinstance(content, dict):
        raise PlanError(f"{where}: {line[:60]!r} is not a JSON object; a prompt is one JSON object a line")
    return {key: value for key, value in content.items() if key in _KEYS}
