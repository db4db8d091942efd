"""The number of tokens that a decode step yields, and the source of that number.

The sources in order of preference: the server's own statistics of each request (vLLM's `--per-request-spec-decode-metrics`);
its counters of drafts, read before and after the blocks of a cell; its counter of generated tokens, if it counts steps
(vLLM 0.9.1); tokens per streamed chunk. An engine streams one chunk for each decode step, so a chunk has the tokens of one
step. But chunks can be merged or split on the way. If there is evidence of that, chunks are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trnspec.benchmark.analyse import values
from trnspec.benchmark.analyse.values import Blocks, Drafts, Records
from trnspec.benchmark.plan import PlannedArm

if TYPE_CHECKING:
    from trnspec.benchmark.analyse.cells import RequestsByCell
    from trnspec.benchmark.analyse.request_table import CellKey

SERVER = "server per-request"
COUNTERS = "server counters"
GENERATED = "generation counter"
CHUNKS = "tokens per chunk"
PLAIN = "plain decoding"
UNKNOWN = "unknown"
MADE_UP = "made up"
NOTES = {
    SERVER: "1 + accepted drafts / speculative steps, counted by the server for each request",
    COUNTERS: "1 + accepted drafts / steps, by the server's counters before and after each block of the cell; other "
    "traffic would be counted too",
    GENERATED: "(tokens - answers) / (advance of vllm:generation_tokens_total - answers), which the engine of vLLM "
    "0.9.1 advances once per step and sequence; other traffic would be counted too",
    CHUNKS: "tokens of all chunks but each answer's first, over the number of these chunks; a chunk is taken for a "
    "decode step, an answer's last one may be cut short",
    PLAIN: "by the plan a step of the arm yields one token",
    UNKNOWN: "no answer says how many tokens its chunks hold",
}
_TOTALS = (
    "mean over answers of (tokens - 1) / (chunks - 1): the server reports totals only; the first chunk is "
    "assumed to hold one token"
)
_MAX_MERGED_SHARE = 0.01
"""With a larger share of merged chunks, the remaining chunks do not represent the steps of the engine."""
_AGREEMENT = 0.03
"""The tolerated relative difference between two sources of one number."""
_MIN_STEP_RATIO = 0.95
"""A step that drafts and verifies takes at least as long as a plain step. If the mean time per chunk is below this share of a plain step
in every answer, chunks are not steps."""
MAX_WINDOWS = 1001
"""A limit for the time: each window is a sum over its positions."""
_MADE_UP = "the emulator does not know how many drafts of these prompts are accepted, so nothing can be predicted for your prompts"


@dataclass(frozen=True)
class TokensPerStep:
    """The tokens per decode step of one cell, with their source."""

    source: str
    tokens_per_step: float | None
    note: str
    drafts: Drafts | None = None
    positions: tuple[str, Drafts] | None = None
    """The first source with counts by position, and these counts; None without one, or if the arm does not draft."""
    why_chunks_are_not_steps: str | None = None
    """None if they are."""


def tokens_per_step_at(cells: RequestsByCell, arm: PlannedArm, place: CellKey) -> TokensPerStep:
    if (arm.name, place.class_) in cells.made_up:
        return TokensPerStep(MADE_UP, None, _MADE_UP, why_chunks_are_not_steps=_MADE_UP)
    records, plain_s = cells.of(arm, place).answers, cells.plain_s(arm, place)
    blocks, unmeasured = cells.blocks_of(arm, place), cells.ramp_and_drain(arm, place).answers
    if cells.loaded_with(place.class_) == place.class_:
        return tokens_per_step(arm, records, blocks, plain_s, unmeasured=unmeasured)
    # Counters are of all classes together, so whether chunks are steps is checked over all classes.
    whole = tokens_per_step(arm, cells.loaded(arm, place).answers, blocks, plain_s, unmeasured=unmeasured)
    return tokens_per_step(arm, records, (), plain_s, doubt=whole.why_chunks_are_not_steps)


def tokens_per_step(
    arm: PlannedArm,
    records: Records,
    blocks: Blocks = (),
    plain_s: float | None = None,
    *,
    unmeasured: Records = (),
    doubt: str | None = None,
) -> TokensPerStep:
    """The yield from all measured requests of a cell, including failed ones. `plain_s` is the time of a plain step there; `unmeasured` are
    other requests in the servers' counters; `doubt` is a known reason why chunks are not steps."""
    answered = [record for record in records if record.error is None]
    every, ceiling = [*records, *unmeasured], arm.max_tokens_per_step
    counts = (of_server(answered), values.counter_deltas(blocks), values.generation_steps(every, blocks))
    sources = [
        (source, drafts)
        for source, drafts in zip((SERVER, COUNTERS, GENERATED), counts, strict=True)
        if drafts and drafts.steps and 1 <= drafts.tokens_per_step <= ceiling
    ]
    (seen, per_chunk), why = _per_chunk(arm, answered), None
    if per_chunk is not None:
        counted = [record for record in every if record.error is None]
        of_all = _per_chunk(arm, counted)[0] if unmeasured else None
        in_all = of_all.tokens_per_step if of_all else per_chunk
        why = doubt or next(_doubts(arm, counted, in_all, sources, plain_s), None)
    if seen and not why:
        sources.append((CHUNKS, seen))
    if sources:
        (source, drafts), *_ = sources
        positions = (known for known in sources if ceiling > 1 and known[1].survival())
        return TokensPerStep(
            source, drafts.tokens_per_step, NOTES[source], drafts, next(positions, None), why
        )
    if per_chunk is not None and not why:
        return TokensPerStep(CHUNKS, per_chunk, _TOTALS)
    if per_chunk is not None and ceiling == 1:
        return TokensPerStep(PLAIN, 1.0, NOTES[PLAIN], why_chunks_are_not_steps=why)
    return TokensPerStep(UNKNOWN, None, why or NOTES[UNKNOWN], why_chunks_are_not_steps=why)


def acceptance(arm: PlannedArm, records: Records, known: TokensPerStep) -> dict[str, Any]:
    """`acceptance` of a cell: tokens per decode step over all steps, with their source and the ceiling of the engine."""
    note, split, per_step = known.note, known.positions, known.tokens_per_step
    if split and split[0] != known.source:
        note = f"{note}; by position: {split[0]}"
    if arm.speculative_tokens == 0:
        note = f"the arm does not speculate; {note}"
    spread = _spread([record for record in records if record.error is None])
    return {
        "source": known.source,
        "tokens_per_step": per_step,
        "per_position": list(split[1].survival() or ()) if split else None,
        "ceiling": arm.max_tokens_per_step,
        "steps": known.drafts.steps if known.drafts else None,
        "distribution": {str(n): spread[n] for n in sorted(spread)} if spread else None,
        "steps_above_ceiling": _above(arm, spread),
        "caution": known.why_chunks_are_not_steps,
        "note": note,
    }


def of_server(answered: Records) -> Drafts | None:
    """The drafts from the server's statistics; None unless every request has them."""
    counts = [drafts for record in answered if (drafts := values.server_counts(record))]
    return values.total(counts) if counts and len(counts) == len(answered) else None


def of_chunks(arm: PlannedArm, answered: Records) -> Drafts | None:
    """The drafts from chunks; None unless every request has token counts for its chunks."""
    if not answered or any(record.chunk_tokens is None for record in answered):
        return None
    return values.of_steps(map(values.decode_steps, answered), arm.max_tokens_per_step)


def first_look(arm: PlannedArm, known: TokensPerStep) -> str:
    """One line after the warm-up: whether the sources of the tokens per step of an arm agree."""
    if known.tokens_per_step is None:
        return f"{arm.name}: tokens per step are not known: {known.note}"
    text = f"{arm.name}: {known.tokens_per_step:.2f} tokens per step by {known.source}"
    if known.why_chunks_are_not_steps:
        return f"{text}; {known.why_chunks_are_not_steps}"
    if known.source == CHUNKS:
        return f"{text}; no counter of the server says whether a chunk is a step"
    return f"{text}, and nothing in the stream contradicts it"


def _per_chunk(arm: PlannedArm, answered: Records) -> tuple[Drafts | None, float | None]:
    """The drafts from chunks, if known, and the tokens per chunk: of these steps, or a mean over answers with a total."""
    if (seen := of_chunks(arm, answered)) and seen.steps:
        return seen, seen.tokens_per_step
    totals = [values.output_tokens(record, arm.max_tokens_per_step) for record in answered]
    means = map(values.tokens_per_chunk, answered, totals)
    known = [tokens for tokens in means if tokens is not None]
    return None, fmean(known) if known else None


def _doubts(
    arm: PlannedArm,
    answered: Records,
    per_chunk: float,
    counted: Sequence[tuple[str, Drafts]],
    plain_s: float | None,
) -> Iterator[str]:
    """Evidence that chunks are not the steps of the engine, in words.

    The server counts the whole last step of an answer, but the stream does not show its end.
    """
    spread, ceiling = _spread(answered), arm.max_tokens_per_step
    if (merged := _above(arm, spread)) > _MAX_MERGED_SHARE * spread.total():
        yield (
            f"{merged} of {spread.total()} chunks hold more than the {ceiling} tokens that a step can yield: steps were "
            "merged on their way, as with a busy client"
        )
    if not 1 <= per_chunk <= ceiling:
        yield (
            f"chunks hold {per_chunk:.2f} tokens, a step yields 1 to {ceiling}: steps were merged or split on "
            "their way"
        )
    timed = values.pooled(answered, ceiling)
    for source, drafts in counted[:1]:
        cut = 0.0 if source == GENERATED or not timed else timed.answers * (ceiling - 1) / 2 / timed.tokens
        if abs(per_chunk / drafts.tokens_per_step - 1) > _AGREEMENT + cut:
            yield (
                f"chunks hold {per_chunk:.2f} tokens, but a step yields {drafts.tokens_per_step:.2f} by {source}: a chunk "
                "is not a step here"
            )
    if arm.speculative_tokens and not counted and plain_s:
        chunks_s = (record.chunk_s for record in answered)
        paced_s = max(((at[-1] - at[0]) / (len(at) - 1) for at in chunks_s if len(at) > 1), default=plain_s)
        if paced_s < plain_s * _MIN_STEP_RATIO:
            yield (
                f"a chunk takes {paced_s * 1000:.1f} ms at most and a plain step {plain_s * 1000:.1f} ms, but a step "
                "that also drafts is not shorter: a chunk is probably not a step"
            )


def _spread(answered: Records) -> Counter[int]:
    """The number of chunks by their number of tokens; empty unless every answer has token counts."""
    if any(record.chunk_tokens is None for record in answered):
        return Counter()
    return Counter(chain.from_iterable(map(values.decode_steps, answered)))


def _above(arm: PlannedArm, spread: Counter[int]) -> int:
    """The number of chunks with more tokens than a step can yield: steps that were merged on the way."""
    return sum(times for tokens, times in spread.items() if tokens > arm.max_tokens_per_step)
