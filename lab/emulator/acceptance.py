"""How many drafted tokens the target accepts, by class of prompt and position in the window.

The table is *fitted*, not measured: with `timing.StepCosts` and k = 7 it reproduces the result of the AWS
ML blog of April 2026 (structured prompts about 45 -> 15 ms per token, the 45 inferred; open-ended about 45 -> 45). Tokens
per step at k = 7 come out as 6.5 repetition, 6.1 numeric, 5.8 json, 4.9 code, 2.1 open-ended. The blog
gives no figures per class: the order of the structured classes is a plausible guess, and so is the decay
beyond the window of 7, chosen so that 15 tokens are slower than 7 in every class (the blog: 15 hurt). What
it says of 5 tokens, that they gave little, no table that has the rest reproduces: here 5 tokens reach most
of the gain of 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType

UNKNOWN_CLASS = "open-ended"
"""For a prompt that no plan names and a class without a row in the table: the class that promises least."""

CONDITIONAL_ACCEPTANCE: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "repetition": (0.985, 0.980, 0.975, 0.970, 0.965, 0.960),
        "numeric": (0.970, 0.960, 0.950, 0.940, 0.930, 0.920),
        "json": (0.955, 0.945, 0.930, 0.915, 0.900, 0.885),
        "code": (0.905, 0.890, 0.870, 0.850, 0.830, 0.810),
        "open-ended": (0.560, 0.530, 0.500, 0.470, 0.440, 0.410),
    }
)
"""Probability that the draft at position 1, 2, ... is accepted when all before it were (fitted, see
above)."""

DECAY_BEYOND_TABLE = 0.05
"""Each position beyond the table is accepted this much less often than the one before it (guess)."""

WEAK_DRAFT_MARK = "0.6b"
WEAK_DRAFT_FACTOR = 0.4
"""The blog: the 0.6B draft accepted about 60 % less (quoted). Read as 60 % fewer accepted drafts a step,
whatever k, which is the same as scaling the first position alone: every later one counts only where the
first was accepted."""


def conditional_acceptance(prompt_class: str, draft: str, speculative_tokens: int) -> tuple[float, ...]:
    """Acceptance at the positions that count: k - 1 of a fused step's k drafts; none for plain decoding."""
    row = list(CONDITIONAL_ACCEPTANCE.get(prompt_class, CONDITIONAL_ACCEPTANCE[UNKNOWN_CLASS]))
    if WEAK_DRAFT_MARK in draft.lower():
        row[0] *= WEAK_DRAFT_FACTOR
    while len(row) < speculative_tokens - 1:
        row.append(max(0.0, row[-1] - DECAY_BEYOND_TABLE))
    return tuple(row[: max(0, speculative_tokens - 1)])


def expected_tokens_per_step(acceptance: tuple[float, ...]) -> float:
    """1 + a1 + a1 a2 + ...: the target's own token and every draft that survives; k at most, not k + 1."""
    expected = survival = 1.0
    for accepted in acceptance:
        survival *= accepted
        expected += survival
    return expected


class Draws:
    """Reproducible chances: one number in [0, 1) per token position of one prompt's answer.

    They depend on the seed, the prompt's text and the position alone, so a rerun repeats whatever the load
    or the speed of the machine, and a token that is hard to draft is hard for every k.
    """

    def __init__(self, seed: int, prompt: str) -> None:
        self._key = blake2b(f"{seed}\0{prompt}".encode(errors="surrogatepass"), digest_size=32).digest()

    def at(self, position: int) -> float:
        digest = blake2b(position.to_bytes(8, "big"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


def tokens_in_step(acceptance: tuple[float, ...], draws: Draws, position: int) -> int:
    """Tokens that a step yields when the next token to come is number `position` of the answer: 1 to k.

    The drafts stand for the tokens from `position` on; the first one refused is replaced by the target's own.
    """
    accepted = 0
    for probability in acceptance:
        if draws.at(position + accepted) >= probability:
            break
        accepted += 1
    return accepted + 1
