"""Time and yield of a step of the emulated accelerator: a model, in which each figure has its origin.

- *quoted*: taken from a publication unchanged;
- *fitted*: chosen so that the emulated service reproduces a published result;
- *assumed*: no source; the reason is given.

Sources: AWS ML blog, April 2026 (Qwen3-32B + Qwen3-1.7B, 7 speculative tokens, fused, batch 4, TP 32 on Trn2):
structured prompts about 45 -> 15 ms per token (the 45 is inferred), open-ended about 45 -> 45, TTFT unchanged; 5 to 15
tokens were tried, 15 hurt. AWS Neuron SDK, speculative decoding tutorial (Qwen3-32B + Qwen3-0.6B): TTFT 48.3 ms without
and 47.4 ms with speculation.

How many drafted tokens the target accepts is *fitted*: with `StepCosts` and k = 7 the table reproduces the blog's result.
Tokens per step at k = 7 come out as 6.5 repetition, 6.1 numeric, 5.8 json, 4.9 code, 2.1 open-ended. The blog gives no
figures per class: the order of the structured classes is a plausible guess, and so is the decay beyond the window of 7.
It makes 15 tokens slower than 7 in every class (the blog: 15 hurt). The blog also says that 5 tokens gave
little, which no table with the other results reproduces: here 5 tokens reach most of the gain of 7.

Arms of other experiments have the step times that are published for the same configuration, or else forecast ones, or else the fitted
costs with a caution (`emulated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean
from types import MappingProxyType

from trnspec.experiment import Arm, Experiment
from trnspec.experiment.arm_forecast import configuration, expected_of, known_slowdown
from trnspec.experiment.catalogue.published import (
    DRAFT,
    DRAFTED,
    PLAIN,
    REFERENCE,
    SEQUENCES,
    TARGET,
    TENSOR_PARALLEL,
    WINDOW,
)
from trnspec.experiment.step_time import of_row

UNKNOWN_CLASS = "open-ended"
"""The class of a prompt that the table was not fitted to: the class with the lowest acceptance."""

_SHIPPED = {
    "repetition": "4723c8c1 f00b908b 54380d99 c2bb9c31 3612add5 92c91add e2f75b80 2c09a2dc",
    "numeric": "cae2bd46 ac7da36d 007d3b79 68e3eeef 19a634e7 9291d04b 427fe980 a4ff1104",
    "json": "16792d7e 6474619e 944cf5e4 296c8732 56c68858 5291aa03 d1489856 facefd2b",
    "code": "821870ad 6e23ea65 8d13f1bf 2d6e2ec9 330a1fc6 cfe40893 10feff30 a3980cd7",
    "open-ended": "a072bee5 80a608ed 445936a6 c9dd25fd c6c0be18 f31129cf 99fcf38b 4298c789",
    "chat": "62a3316c 21c9470c e4391895 3cc1b044 30368491 237a8170 453b5eda 72339c63 e772024e 564088c7 ef506098 ad364348",
}
_CLASS_OF = {digest: name for name, digests in _SHIPPED.items() for digest in digests.split()}
"""The prompts of experiments/prompts, by the first four bytes of their BLAKE2b hash."""


def shipped_class(prompt: str) -> str | None:
    """Return the class of a shipped prompt, by its text; `None` for other prompts, whatever their class is called."""
    return _CLASS_OF.get(blake2b(prompt.strip().encode(errors="surrogatepass"), digest_size=4).hexdigest())


CONDITIONAL_ACCEPTANCE: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "repetition": (0.985, 0.980, 0.975, 0.970, 0.965, 0.960),
        "numeric": (0.970, 0.960, 0.950, 0.940, 0.930, 0.920),
        "json": (0.955, 0.945, 0.930, 0.915, 0.900, 0.885),
        "code": (0.905, 0.890, 0.870, 0.850, 0.830, 0.810),
        "open-ended": (0.560, 0.530, 0.500, 0.470, 0.440, 0.410),
    }
)
"""Probability that the draft at position 1, 2, ... is accepted when all before it were (fitted, see above)."""

DECAY_BEYOND_TABLE = 0.05
"""How much less often each position beyond the table is accepted than the one before it (a guess)."""

WEAK_DRAFT_MARK = "0.6b"
WEAK_DRAFT_FACTOR = 0.4
"""The blog: the 0.6B draft accepted about 60 % less (quoted). Interpreted as 60 % fewer accepted drafts per step for any k,
which is the same as scaling the first position alone: every later one counts only where the first was accepted."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Seconds that the device is busy, the same for 1 sequence in the batch and for `max_num_seqs` (assumed: reading the
    weights dominates, and the graph is compiled for the full batch)."""

    prefill_s: float = 0.048
    """One prompt, whatever its length (quoted, 48.3 and 47.4 ms in the tutorial). Serial, because the context graph is
    compiled for one sequence; equal in both arms (blog: TTFT unchanged). A request that arrives during a decode step
    still waits for that step to end, and a speculative step is the longer one."""
    decode_step_s: float = 0.045
    """Plain decoding, one token for every sequence (fitted: about 45 ms per token in the blog)."""
    draft_pass_s: float = 0.0068
    """One pass of the draft model (fitted, together with `verify_s` and the acceptance of open-ended prompts, so that 7
    passes and a verification about double the plain step). A smaller draft is charged the same (assumed)."""
    verify_s: float = 0.045
    """The target's pass over the first position of a window (fitted: the same pass as a plain step)."""
    verify_position_s: float = 0.0003
    """Each further position of the window (assumed: small while decoding is bound by memory, yet not nothing)."""

    def step_s(self, speculative_tokens: int, at_once: int = 1) -> float:
        """Return the seconds of one decode step for any number of concurrent requests; 0 speculative tokens is plain decoding.

        Fused speculation with k tokens makes k draft passes and one verification of k positions (NxD Inference,
        `NeuronFusedSpecModel`): 94.4 ms for k = 7. The last draft pass only fills the draft's KV cache.
        """
        k = speculative_tokens
        if k == 0:
            return self.decode_step_s
        return k * self.draft_pass_s + self.verify_s + (k - 1) * self.verify_position_s


@dataclass(frozen=True, kw_only=True)
class Timed(StepCosts):
    """Steps as they are published or forecast for the arm's own configuration."""

    steps_s: Mapping[int, float]
    """Seconds of a decode step, by the maximum of concurrent requests for which it holds."""
    most_tokens: int
    """The maximum tokens of a step."""
    tokens_per_step: float | None = None
    """The published number; `None`: the fitted acceptance is borrowed."""
    known: tuple[str, ...] = ()
    """Classes of shipped prompts whose acceptance is known."""

    def step_s(self, speculative_tokens: int, at_once: int = 1) -> float:
        return self.steps_s[
            min((most for most in self.steps_s if most >= at_once), default=max(self.steps_s))
        ]

    def acceptance(self, prompt_class: str, draft: str) -> tuple[float, ...]:
        """Return the acceptance by position. If tokens per step are published, it is the same at every position, because only their mean is
        known."""
        if self.tokens_per_step is None:
            return conditional_acceptance(prompt_class, draft, self.most_tokens)
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            few = sum(middle**position for position in range(self.most_tokens)) < self.tokens_per_step
            low, high = (middle, high) if few else (low, middle)
        return (low,) * (self.most_tokens - 1)


def conditional_acceptance(prompt_class: str, draft: str, speculative_tokens: int) -> tuple[float, ...]:
    """Return the acceptance at the positions that count: k - 1 of the k drafts of a fused step; none for plain decoding."""
    row = list(CONDITIONAL_ACCEPTANCE.get(prompt_class, CONDITIONAL_ACCEPTANCE[UNKNOWN_CLASS]))
    if WEAK_DRAFT_MARK in draft.lower():
        row[0] *= WEAK_DRAFT_FACTOR
    while len(row) < speculative_tokens - 1:
        row.append(max(0.0, row[-1] - DECAY_BEYOND_TABLE))
    return tuple(row[: max(0, speculative_tokens - 1)])


class Draws:
    """Reproducible random numbers: one in [0, 1) for each token position of one prompt's answer.

    They depend on the seed, the prompt's text and the position alone. So a second run gives the same numbers at any load and on any
    machine, and a token that is hard to draft is hard for every k.
    """

    def __init__(self, seed: int, prompt: str) -> None:
        self._key = blake2b(f"{seed}\0{prompt}".encode(errors="surrogatepass"), digest_size=32).digest()

    def at(self, position: int) -> float:
        digest = blake2b(position.to_bytes(8, "big"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


def tokens_in_step(acceptance: tuple[float, ...], draws: Draws, position: int) -> int:
    """Return the tokens of the step that begins at token number `position` of the answer: 1 to k.

    The drafts stand for the tokens from `position` on; the first one refused is replaced by the target's own.
    """
    accepted = 0
    for probability in acceptance:
        if draws.at(position + accepted) >= probability:
            break
        accepted += 1
    return accepted + 1


CHAT = "chat"
"""Class of the prompts for which acceptance of heads is published."""


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """How one arm is emulated."""

    timed: Timed | None
    """`None` for the fitted costs."""
    caution: str | None
    """What a reader must know about its timings."""


def emulated(experiment: Experiment) -> dict[str, Emulated]:
    """Return how each arm is emulated, by its name."""
    return {arm.name: _emulated(experiment, arm) for arm in experiment.arms}


def _emulated(experiment: Experiment, arm: Arm) -> Emulated:
    mode = arm.speculation.mode if arm.speculation else None
    fitted = configuration(arm) == of_row(REFERENCE) and not arm.engine and mode in (None, "fused")
    if not fitted and (steps := _steps(experiment, arm)):
        steps_s, rows, tokens = steps
        times = ", ".join(
            f"{s * 1000:.1f} ms at concurrency {load} or less" for load, s in sorted(steps_s.items())
        )
        caution = f"{arm.name} is emulated with a step of {times} ({', '.join(dict.fromkeys(rows))})"
        if tokens is not None:
            caution += f", and with the published {tokens:.2f} tokens per step"
        elif mode == "fused":
            caution += f", and with the acceptance that is fitted to {TARGET} with {DRAFT}"
        known = (CHAT,) if tokens is not None else tuple(CONDITIONAL_ACCEPTANCE) if mode == "fused" else ()
        timed = Timed(steps_s=steps_s, most_tokens=arm.tokens_per_step, tokens_per_step=tokens, known=known)
        return Emulated(timed=timed, caution=caution)
    borrowed = None
    if other := ", ".join(_beyond(arm)):
        borrowed = (
            f"{arm.name} has {other}, and is emulated with the step times of {TARGET} at TP {TENSOR_PARALLEL}, "
            f"{SEQUENCES} sequences, drafted by {DRAFT}, k = {WINDOW}"
        )
    return Emulated(timed=None, caution=borrowed)


def _steps(experiment: Experiment, arm: Arm) -> tuple[dict[int, float], list[str], float | None] | None:
    """Seconds of a step by load, the rows that have them, and the published tokens of a step; `None` where nothing predicts
    a step."""
    plain = [
        row
        for row in PLAIN
        if of_row(row) == configuration(arm) and row.known_slowdown == known_slowdown(arm)
    ]
    beside = [row for row in DRAFTED if row.base in {known.row for known in plain}]
    if arm.speculation is not None:
        window = (arm.speculation.mode, arm.num_speculative_tokens)
        same = [row for row in beside if (row.mode, row.num_speculative_tokens) == window]
        if known := [(row, row.tokens_per_step) for row in same if row.tokens_per_step]:
            by_load: dict[int, list[float]] = {}
            for row, tokens in known:
                by_load.setdefault(row.concurrency, []).append(row.tpot_s * tokens)
            mean_s = {load: fmean(steps) for load, steps in by_load.items()}
            return mean_s, [row.row for row, _ in known], fmean(tokens for _, tokens in known)
    expected = expected_of(experiment, arm)
    if plain:
        steps_s = {row.concurrency: row.plain_tpot_s for row in beside}
        steps_s |= {row.concurrency: row.tpot_s for row in plain}
        rows = [row.row for row in plain]
    elif expected.plain.likely_s is not None:
        steps_s, rows = {arm.serving.max_num_seqs: expected.plain.likely_s}, ["a forecast"]
    else:
        return None
    if arm.speculation is None:
        return steps_s, rows, None
    if expected.drafted is None or (times := expected.drafted.likely) is None:
        return None
    return {load: step_s * times for load, step_s in steps_s.items()}, [*rows, "a forecast"], None


def _beyond(arm: Arm) -> list[str]:
    """What is not as it was published; the 0.6B draft and other windows have rows of their own."""
    speculation = arm.speculation
    draft = speculation.draft.model.name if speculation else DRAFT
    window = speculation.num_speculative_tokens if speculation else WINDOW
    differences = {
        arm.target.model.name: arm.target.model.name != TARGET,
        f"TP {arm.serving.tensor_parallel}": arm.serving.tensor_parallel != TENSOR_PARALLEL,
        f"{arm.serving.max_num_seqs} sequences": arm.serving.max_num_seqs != SEQUENCES,
        draft: draft != DRAFT and WEAK_DRAFT_MARK not in draft.lower(),
        f"k = {window}": window != WINDOW,
        f"an engine of its own ({', '.join(arm.engine)})": bool(arm.engine),
        "a scheduler of its own": bool(arm.scheduler),
    }
    return [text for text, differs in differences.items() if differs]
