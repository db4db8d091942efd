"""The prompts of an experiment, from the experiment file or a file of prompts, and their number of tokens.

An estimate of tokens, by script, decides what is compiled and forecast. Limits are checked with an upper bound, because a prompt
that is longer than expected ends a server of NxD Inference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.limits import whole
from trnspec.benchmark.plan import MAX_OUTPUT, PlannedPrompt
from trnspec.benchmark.prompt_files import MAX_PROBLEMS, planned, read_file
from trnspec.core.findings import Finding
from trnspec.core.words import LABEL_RULE, count, is_label
from trnspec.experiment.catalogue.models import table_of
from trnspec.experiment.model import PromptsSection
from trnspec.experiment.refusals import refused


class Prompt(PlannedPrompt):
    """One prompt of one class, as the plan of the benchmark has it, and its length."""

    tokens: Annotated[int | None, whole(1, MAX_OUTPUT)] = None
    """Maximum tokens with the target's tokenizer, as its author states."""
    __hash__ = PlannedPrompt.__hash__

    @property
    def planned(self) -> PlannedPrompt:
        """What is asked, without the length."""
        content = self.model_dump(by_alias=True, exclude_unset=True, exclude={"tokens"})
        return PlannedPrompt.model_validate(content)

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


Read = tuple[tuple[Prompt, ...], tuple[Finding, ...], str]
"""The prompts, the problems, and the format of the file."""


def read_prompts(
    section: PromptsSection, *, endpoint: str, folder: Path, temperature: float = 0.0, thinking: bool = False
) -> Read:
    """Read the prompts of the section; the path of a file is relative to the experiment file's folder."""
    if (section.classes is None) == (section.file is None):
        return (), (refused("prompts one-source", None),), ""
    if section.file is not None:
        file = read_file(folder / section.file, name=section.file, ignored=section.ignore)
        run = {"temperature": temperature, "chat_template_kwargs": {"enable_thinking": thinking}}
        read, found = planned(file, endpoint=endpoint, run=run, form=Prompt)
        distinct = {(prompt.class_name, prompt.contents, repr(prompt.request)) for prompt in read}
        numbers = Counter(class_name for class_name, *_ in distinct)
        few = () if found else _too_few(dict(sorted(numbers.items())), "prompts.file")
        return tuple(read), (*found[: 2 * MAX_PROBLEMS], *few), file.format
    classes, problems = section.classes or {}, list[Finding]()
    for name, texts in classes.items():
        path = f"prompts.classes.{name}"
        if not is_label(name):
            problems.append(refused("class no-name", name, at=path, form=LABEL_RULE))
        problems += (
            refused("prompt empty", text, at=f"{path}[{number}]")
            for number, text in enumerate(texts)
            if not text.strip()
        )
    counts = {name: len(set(texts)) for name, texts in classes.items()}
    problems += _too_few(counts, "prompts.classes.{}")
    prompts = () if problems else tuple(_of_classes(classes, endpoint))
    return prompts, tuple(problems), ""


def _of_classes(classes: Mapping[str, Sequence[str]], endpoint: str) -> Iterator[Prompt]:
    for name, texts in classes.items():
        for number, text in enumerate(texts, start=1):
            asked = (
                {"messages": [{"role": "user", "content": text}]} if endpoint == "chat" else {"prompt": text}
            )
            yield Prompt.model_validate({"id": f"{name}-{number}", "class": name, **asked})


def _too_few(counts: dict[str, int], path: str) -> Iterable[Finding]:
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
