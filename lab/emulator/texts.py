"""Texts: which prompt of the benchmark's plan a request asks, and the answer that is made up for it.

Acceptance depends on the prompt, and a request does not say which one it asks. The client puts a nonce in front of each prompt,
so a prompt is recognised as the end of the text that arrives. An answer is a function of the prompt and its class alone, so
that all arms write the same. A token is a short piece of a word with the space before it; the pieces look like
their class and mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from benchmark.limits import by_user
from benchmark.plan import load
from lab.emulator.timings import UNKNOWN_CLASS, shipped_class

NATURAL_LENGTH_TOKENS: Mapping[str, int] = MappingProxyType(
    {"repetition": 600, "numeric": 600, "json": 600, "code": 600, "open-ended": 700}
)
"""Where an answer ends by itself if the request allows more (made up: no shorter than the plans' usual limit)."""

_PIECE = re.compile(r"\s*\S{1,6}")
_WORDS = """
    a river of small hours and the people who keep it moving toward some open sea while nobody asks why
    light falls on one side of every stone or how long the patient work of weather takes
""".split()  # noqa: SIM905  # a list literal of forty words reads worse


@dataclass(frozen=True)
class PromptClasses:
    """The texts that a plan will send, each with its class, longest first; without a plan, none."""

    entries: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    """The plan's seed, for requests that bring none."""

    def of(self, text: str) -> str:
        """The class of the longest known prompt that `text` ends with; open-ended if no prompt is known."""
        return self._entry(text)[1]

    def drafted_as(self, text: str) -> str:
        """The class whose acceptance that prompt has: the one it was shipped in."""
        return shipped_class(self._entry(text)[0]) or UNKNOWN_CLASS

    def beyond(self, known: Sequence[str]) -> list[str]:
        """Classes of the plan with a prompt whose acceptance is not known."""
        return sorted({name for text, name in self.entries if shipped_class(text) not in known})

    def _entry(self, text: str) -> tuple[str, str]:
        text = text.rstrip()
        return next((entry for entry in self.entries if text.endswith(entry[0])), ("", UNKNOWN_CLASS))


def load_classes(path: Path) -> PromptClasses:
    """Read the plan that the benchmark will run."""
    plan = load(path)
    texts = {
        ((one.prompt or last_user_text(one.messages or ())).rstrip(), one.class_) for one in plan.prompts
    }
    known = sorted((entry for entry in texts if entry[0]), key=lambda entry: (-len(entry[0]), entry))
    return PromptClasses(entries=tuple(known), seed=plan.seed)


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last user message that is one; empty if the chat has no such message."""
    return next((one["content"] for one in reversed(messages) if by_user(one)), "")


@dataclass(frozen=True)
class EmulatedAnswer:
    """A whole answer, cut into tokens before the first one is served."""

    pieces: tuple[str, ...]
    finish_reason: str
    """`length` when max_tokens ends it, `stop` when it ends by itself."""


def prompt_tokens(text: str) -> int:
    """Estimated length of a prompt: a token for every 4 bytes of UTF-8, rounded up. No chat template is counted."""
    return max(1, -(-len(text.encode(errors="surrogatepass")) // 4))


def write_answer(
    prompt: str, prompt_class: str, *, max_tokens: int, ignore_eos: bool = False
) -> EmulatedAnswer:
    """The answer to `prompt`, the text of the last user message, of at most `max_tokens` tokens."""
    natural = NATURAL_LENGTH_TOKENS.get(prompt_class, NATURAL_LENGTH_TOKENS["open-ended"])
    ends_itself = natural < max_tokens and not ignore_eos
    pieces = list(islice(_pieces(prompt, prompt_class), natural if ends_itself else max_tokens))
    pieces[0] = pieces[0].lstrip()
    return EmulatedAnswer(tuple(pieces), "stop" if ends_itself else "length")


def _pieces(prompt: str, prompt_class: str) -> Iterator[str]:
    line_of = _LINES.get(prompt_class)
    lines = (line_of(prompt, number) for number in count(1)) if line_of else _prose(prompt)
    return chain.from_iterable(map(_PIECE.findall, lines))


_LINES: Mapping[str, Callable[[str, int], str]] = {
    "repetition": lambda prompt, _: f"\n{prompt.partition(':')[2].strip() or prompt.strip() or 'again'}",
    "numeric": lambda _, number: f" {number},",
    "json": lambda _, number: f'\n{{"id": {number}, "name": "item-{number}", "ready": true}},',
    "code": lambda _, number: f"\ndef step_{number}(value):\n    return value + {number}",
}
"""How each class writes a line of an answer; other classes get prose."""


def _prose(prompt: str) -> Iterator[str]:
    digest = blake2b(prompt.encode(errors="surrogatepass"), digest_size=8).digest()
    random = Random(int.from_bytes(digest, "big"))
    while True:
        words = [random.choice(_WORDS) for _ in range(random.randint(6, 14))]
        yield f" {words[0].capitalize()} {' '.join(words[1:])}."
