"""Which class a request's prompt belongs to, read from the benchmark's plan.

A class is not visible in a request, yet acceptance depends on it. The client puts a nonce in front of each
prompt, so a prompt is recognised as the end of the text that arrives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.finding import Misuse
from lab.emulator.acceptance import CONDITIONAL_ACCEPTANCE, UNKNOWN_CLASS


@dataclass(frozen=True)
class PromptClasses:
    """The texts that a plan will send, each with its class, longest first; without a plan, none."""

    entries: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    """The plan's seed, for requests that bring none."""

    def of(self, text: str) -> str:
        """The class of the longest known prompt that `text` ends with; open-ended if there is none."""
        text = text.rstrip()
        return next((name for known, name in self.entries if text.endswith(known)), UNKNOWN_CLASS)

    @property
    def without_acceptance(self) -> tuple[str, ...]:
        """Classes of the plan that the acceptance table does not know; they are served like open-ended
        prompts."""
        return tuple(sorted({name for _, name in self.entries} - set(CONDITIONAL_ACCEPTANCE)))


def load_classes(path: Path) -> PromptClasses:
    """Read the plan that the benchmark will run; `Misuse` says what cannot be read."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misuse(f"plan {path}: {error.strerror}; give the plan that the benchmark mounts") from None
    except ValueError as error:
        raise Misuse(f"plan {path}: no JSON ({error}); give the plan that the benchmark mounts") from None
    prompts = plan.get("prompts") if isinstance(plan, dict) else None
    if not isinstance(prompts, list):
        raise Misuse(f"plan {path}: 'prompts' is {type(prompts).__name__}; a list of prompts is needed")
    entries = {_entry(path, number, prompt) for number, prompt in enumerate(prompts)}
    seed = plan.get("seed")
    return PromptClasses(
        entries=tuple(sorted(entries, key=lambda entry: (-len(entry[0]), entry))),
        seed=seed if type(seed) is int else 0,
    )


def _entry(path: Path, number: int, prompt: object) -> tuple[str, str]:
    if isinstance(prompt, dict) and isinstance(prompt.get("class"), str):
        text = prompt.get("prompt") or last_user_text(prompt.get("messages"))
        if isinstance(text, str) and text.strip():
            return text.rstrip(), prompt["class"]
    raise Misuse(
        f"plan {path}: prompts[{number}] lacks a class or a text; give 'class' and 'messages' or 'prompt'"
    )


def last_user_text(messages: object) -> str:
    """The text of the last user message, empty if there is none."""
    if not isinstance(messages, Sequence):
        return ""
    users = [
        message for message in messages if isinstance(message, Mapping) and message.get("role") == "user"
    ]
    return message_text(users[-1]) if users else ""


def message_text(message: Mapping[str, Any]) -> str:
    """The text of one chat message, whose content is a string or a list of parts; other parts than text
    are nothing."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))
