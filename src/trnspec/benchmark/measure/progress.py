"""What a run says: its size before the load, what it will not be able to say, and its progress: one line per block in a log, one line that is
updated on a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from trnspec.benchmark.cell_size import MIN_PROMPTS, SETS
from trnspec.benchmark.measure.records import LATE_S, REPEATED, RequestRecord
from trnspec.benchmark.measure.schedule import Block, requests_about, set_size
from trnspec.benchmark.plan import MIXED, Plan
from trnspec.core.safe_output import printable, shortened
from trnspec.core.screen import width, wrapped
from trnspec.core.words import count, listed, plural

_BACK = "\r\x1b[K"
"""Returns the cursor to the start of the line and clears it."""


class Progress:
    """Writes the lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO = getattr(
            stream, "stream", stream
        )  # the stream below, which can move the cursor
        self._moving = stream.isatty()
        self._blocks = self._begun = 0
        self._title, self._began, self._ended = "", 0.0, Counter[bool]()
        """The block that is being loaded: its title, when it began, and its requests by whether they failed."""
        self._errors = Counter[tuple[str, str]]()
        self._late_s: list[float] = []
        """How late the client was, for each measured block in which it was late."""
        self.left_s: float | None = None
        """The remaining time in seconds, if known."""

    def expect(self, blocks: int) -> None:
        """Add `blocks` to the expected number of blocks."""
        self._blocks += blocks

    def begin(self, block: Block) -> None:
        """A block starts."""
        self._begun += 1
        count = f"[{self._begun}/{self._blocks}]"
        again = "repeat of " if block.round == REPEATED else ""
        class_ = "all classes" if block.class_ == MIXED else block.class_
        measured = f"{again}{class_}, {block.load.in_words}, {block.arm}"
        left = "" if self.left_s is None else f" (about {duration(self.left_s)} left)"
        title = f"{count}{left} {f'warm-up {block.arm}' if block.phase == 'warmup' else measured}"
        self._title, self._began, self._ended = title, time.monotonic(), Counter()

    @property
    def _line(self) -> str:
        took_s = time.monotonic() - self._began
        return f"{self._title}: {self._ended[False]} ok, {self._ended[True]} failed, {took_s:.1f} s"

    def count(self, *, failed: bool) -> None:
        """One request of the block has ended."""
        self._ended[failed] += 1
        if self._moving:
            line = printable(self._line)
            self._stream.write(_BACK + shortened(line, width() - 1))  # a longer one would leave lines behind
            self._stream.flush()

    def failed(self, arm: str, name: str, message: str) -> None:
        """A request of an arm failed: the first message of each kind of error is printed, the others are counted."""
        if not self._errors[arm, name]:
            self.warn(f"{arm}: {name}: {message}")
        self._errors[arm, name] += 1

    def summary(self) -> None:
        """Print how often each kind of error occurred, if one occurred more than once; and whether the client was late."""
        if max(self._errors.values(), default=0) > 1:
            each = (f"{arm} {name} ({number:,})" for (arm, name), number in self._errors.items())
            self.warn(f"failed requests: {', '.join(each)}")
        if self._late_s:
            self.warn(
                f"this client was late in {count(len(self._late_s), 'block')}, by {max(self._late_s) * 1000:.0f} ms at most: measured "
                "times may be too long by that. Give it a CPU core of its own, or send fewer concurrent requests"
            )

    def end(self, block: Block, *, lag_s: float) -> None:
        """The block has ended; the client's event loop was `lag_s` late at the worst."""
        self.tell(self._line)
        if lag_s > LATE_S and block.phase == "measured":
            self._late_s.append(lag_s)

    def tell(self, text: str) -> None:
        """Print a line, in a log as one line, on a terminal folded to its width."""
        lines = "\n".join(wrapped(printable(text))) if self._moving else printable(text)
        self._stream.write(f"{_BACK if self._moving else ''}{lines}\n")
        self._stream.flush()

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.tell(f"warning: {text}")


def duration(seconds: float) -> str:
    """The time in words: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def size(plan: Plan) -> str:
    """Arms, classes, requests, loads and the length of an answer; all requests, and the minutes where the plan limits them."""
    classes = count(len(plan.classes), "class") + (" together" if plan.loaded_with == (MIXED,) else "")
    each = SETS * min(set_size(plan, load) for load in plan.loads) // (len(plan.classes) if plan.mixed else 1)
    loads = listed([f"{load.size:g}" for load in plan.loads])
    unit = "requests per second" if plan.rate else plural(plan.loads[-1].size, "concurrent request")
    limits = {plan.answer_limit(prompt) for prompt in plan.prompts}
    length = f"{max(limits)} tokens" if plan.ignore_eos else f"at most {max(limits)} tokens"
    text = f"{count(len(plan.arms), 'arm')} x {classes} x {each} requests or more, at {loads} {unit}; answers of {length}"
    text += f"; about {requests_about(plan):,} requests with ramps and warm-up"
    if plan.cell_minutes:
        cells = len(plan.loads) * len(plan.loaded_with)
        text += f", {plan.cell_minutes * (cells + 0.5):.0f} minutes at most"
    return text


def limits(plan: Plan, warmups: Mapping[str, Sequence[RequestRecord]], counts: Mapping[str, bool]) -> str:
    """What the run will not be able to say, with the reasons; empty if there is nothing. `warmups` are the answers of each arm, `counts`
    whether its server has counters."""
    return "; ".join(_limits(plan, warmups, counts))


def _limits(
    plan: Plan, warmups: Mapping[str, Sequence[RequestRecord]], counts: Mapping[str, bool]
) -> Iterable[str]:
    answers = {arm: [one for one in own if one.error is None] for arm, own in warmups.items()}
    drafting = [arm.name for arm in plan.arms if arm.speculative_tokens]
    several = [arm.name for arm in plan.arms if arm.max_tokens_per_step > 1]
    prompts = Counter(prompt.class_name for prompt in plan.prompts)
    few = [
        f"{class_} ({count(number, 'prompt')})" for class_, number in prompts.items() if number < MIN_PROMPTS
    ]
    if few:
        yield f"which arm is faster for {listed(few, max_names=5)}: a verdict needs {MIN_PROMPTS} prompts"
    if len(plan.arms) == 1:
        yield "which arm is faster (the run has one arm)"
    if uncounted := [arm for arm in several if any(one.completion_tokens is None for one in answers[arm])]:
        yield f"how many tokens an answer has ({listed(uncounted)}: the server sends no usage)"
    whole = [arm for arm in several if any(one.chunk_tokens is None for one in answers[arm])]
    if whole := [arm for arm in whole if arm not in uncounted]:
        yield f"how many tokens a chunk has ({listed(whole)}: the server sends no usage per chunk)"
    if silent := [arm for arm in drafting if not counts[arm]]:
        yield f"how many drafts are accepted ({listed(silent)}: no counters at /metrics)"
    if all(arm.usd_per_hour is None for arm in plan.arms):
        yield "what a token costs (no arm has a price: --usd-per-hour)"
