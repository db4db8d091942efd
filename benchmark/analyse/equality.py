"""Whether two arms wrote the same text: with greedy decoding speculation must not change a word."""

from __future__ import annotations

from typing import Any

from benchmark.analyse.comparison import Pairs


def output_equality(baseline: str, pairs: Pairs) -> dict[str, Any]:
    """How often both arms wrote the same, and where, in characters, the other pairs part.

    Pairs without a recorded text are left out, and those of arms that share a server: their nonces differ.
    """
    known = [
        (one, other)
        for one, other in pairs
        if one.text_sha256 and other.text_sha256 and one.nonce == other.nonce
    ]
    partings = sorted(
        first_difference(one.text or "", other.text or "")
        for one, other in known
        if one.text_sha256 != other.text_sha256
    )
    return {
        "baseline": baseline,
        "n_pairs": len(known),
        "equal": len(known) - len(partings),
        "rate": (len(known) - len(partings)) / len(known) if known else None,
        "first_divergence_chars": partings,
    }


def first_difference(one: str, other: str) -> int:
    """Index of the first character in which two texts differ; their end where they do not."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
