"""The prompts of an experiment, from the experiment file or a file of prompts, and their number of tokens.

An estimate of tokens, by script, decides what is compiled and forecast. Limits are checked with an upper bound, because a prompt
that is longer than expected ends a server of NxD Inference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.core.findings import Finding
from trnspec.core.words import LABEL_RULE, count, is_label
from trnspec.experiment.catalogue.models import table_of
from trnspec.experiment.model import Benchmark, PromptsSection
from trnspec.experiment.refusals import refused


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of one class, and its length. The fields but `contents` and `tokens` are those of the benchmark's plan."""

    id: str
    class_name: str
    contents: tuple[str, ...] = field(compare=False, repr=False)
    """Its texts, and its tools as JSON."""
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    """Maximum tokens with the target's tokenizer, as its author states."""

    def __hash__(self) -> int:
        return hash((self.class_name, self.id))

    @property
    def planned(self) -> dict[str, Any]:
        """The entry of the benchmark's plan."""
        names = ("id", "prompt", "messages", "max_tokens", "request")
        own = {name: value for name in names if (value := getattr(self, name))}
        return {"class": self.class_name, **own}

    @property
    def utf8_bytes(self) -> int:
        """Length in bytes, which is also an upper bound of the tokens: a byte-level vocabulary has at most one token per byte."""
        return sum(len(content.encode()) for content in self.contents)

    @property
    def max_prompt_tokens(self) -> int:
        """Upper bound of its tokens, for the checks of limits."""
        return self.utf8_bytes if self.tokens is None else self.tokens

    @property
    def likely_tokens(self) -> int:
        """Estimated tokens, for compilation and forecasts."""
        return self.tokens or sum(map(estimated, self.contents))


_AROUND_TOKENS = 48
"""Tokens that the benchmark and a chat template add to a prompt."""


def expected_tokens(prompts: Iterable[Prompt], *, answer: int) -> tuple[int, int]:
    """Estimate the tokens of the longest prompt, and of the longest sequence, with its answer."""
    longest, longest_whole = 0, 0
    for prompt in prompts:
        asked = prompt.likely_tokens + _AROUND_TOKENS
        longest = max(longest, asked)
        longest_whole = max(longest_whole, asked + (prompt.max_tokens or answer))
    return longest, longest_whole


Read = tuple[tuple[Prompt, ...], list[Finding], str]
"""The prompts, the problems, and the format of the file."""


def read_prompts(section: PromptsSection, benchmark: Benchmark, folder: Path) -> Read:
    """Read the prompts of the section; the path of a file is relative to the experiment file's folder."""
    if section.classes is not None and section.file is None:
        return (*_of_classes(section.classes, benchmark.endpoint), "")
    if section.file is None or section.classes is not None:
        return (), [refused("prompts one-source", None)], ""
    from trnspec.benchmark.prompt_files import MAX_PROBLEMS, planned, read_file  # slow to import

    file = read_file(folder / section.file, name=section.file, ignored=section.ignore)
    run = {
        "temperature": benchmark.temperature,
        "chat_template_kwargs": {"enable_thinking": benchmark.thinking},
    }
    read, problems = planned(file, endpoint=benchmark.endpoint, run=run)
    prompts = tuple(Prompt(contents=one.contents, **dict(one)) for one in read)
    distinct = {(prompt.class_name, prompt.contents, repr(prompt.request)) for prompt in prompts}
    numbers = Counter(class_name for class_name, *_ in distinct)
    few = () if problems else _too_few(dict(sorted(numbers.items())), "prompts.file")
    return prompts, [*problems[: 2 * MAX_PROBLEMS], *few], file.format


def _of_classes(
    classes: Mapping[str, Sequence[str]], endpoint: str
) -> tuple[tuple[Prompt, ...], list[Finding]]:
    prompts, problems = list[Prompt](), list[Finding]()
    for name, texts in classes.items():
        path = f"prompts.classes.{name}"
        if not is_label(f"{name}-{len(texts)}"):
            problems.append(refused("class no-name", name, at=path, form=LABEL_RULE))
        for number, text in enumerate(texts):
            if not text.strip():
                problems.append(refused("prompt empty", text, at=f"{path}[{number}]"))
            asked: dict[str, Any] = {"prompt": text}
            if endpoint == "chat":
                asked = {"messages": ({"role": "user", "content": text},)}
            prompts.append(Prompt(id=f"{name}-{number + 1}", class_name=name, contents=(text,), **asked))
    problems += _too_few({name: len(set(texts)) for name, texts in classes.items()}, "prompts.classes.{}")
    return (() if problems else tuple(prompts)), problems


def _too_few(counts: dict[str, int], path: str) -> Iterator[Finding]:
    if not counts:
        yield refused("prompts none", None, at=path.removesuffix(".{}"))
    for name, known in counts.items():
        if (missing := MIN_PROMPTS - known) > 0:
            yield refused(
                "class too-few",
                None,
                at=path.format(name),
                name=name,
                prompts=count(known, "distinct prompt"),
                minimum=MIN_PROMPTS,
                missing=missing,
                how="" if "{}" in path else " (`class` in their lines)",
            )


LATIN_PER_TOKEN = 3.0
"""Approximate characters per token; for other scripts see `prompts.yaml`."""


@cache
def _scripts() -> tuple[list[int], list[float]]:
    """Return the code point at which each script begins, and its characters per token."""
    table = table_of(__file__)
    return list(table.keys()), list(table.values())


def estimated(text: str) -> int:
    """Estimate the tokens of `text`."""
    if text.isascii():
        return int(len(text) / LATIN_PER_TOKEN)
    begins, per_token = _scripts()
    counts = Counter(text)
    return int(sum(n / per_token[bisect_right(begins, ord(char)) - 1] for char, n in counts.items()))
