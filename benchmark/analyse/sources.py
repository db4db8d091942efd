"""What an interval holds: that other prompts, other blocks of time and other starts of the servers would give another mean.

Prompts differ in how much they gain. Requests of a block share what the machine does meanwhile. Two starts of the same servers
differ as well. Each is a source of chance of its own, and pairs of requests belong to a unit of each: they are clustered in
two ways that cross. The variance of a mean is that over prompts, plus that over blocks, less that over what lies within both, which
both contain (Cameron, Gelbach and Miller 2011, Journal of Business and Economic Statistics 29):

    V = V_prompts + max(0, V_blocks - V_within)

Its degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2), never fewer than those of the part that has fewest, and
those of the prompts where blocks add nothing.

With one start, the interval is about that start. With several, the mean is the one over starts, and starts take the place of
blocks, which they contain. Two or three of them may be alike by chance, so the interval is the widest of three: over prompts,
over starts, and over both.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmark.analyse.stats import CONFIDENCE, Estimate, t_quantile


class Source(NamedTuple):
    """Where the chance in one pair of requests comes from."""

    class_: str
    prompt: str
    queue: str = ""
    """What its block was made of: its class, or all classes together."""
    block: str | None = None
    """The two arms' blocks of the same number; None where that is not known."""
    start: int = 1


Sample = Sequence[tuple[Source, float]]
Moves = Mapping[Source, float]
"""By how much the pairs of one source move a mean."""
Variance = tuple[float, float]
"""With its degrees of freedom."""
Key = Callable[[Source], tuple[Hashable, Hashable]]
"""The stratum and the unit that a source belongs to."""


def by_prompt(one: Source) -> tuple[Hashable, Hashable]:
    """Prompts of a class."""
    return one.class_, one.prompt


def by_block(one: Source) -> tuple[Hashable, Hashable]:
    """Blocks of a class, or of all classes together."""
    return one.queue, one.block


def by_start(one: Source) -> tuple[Hashable, Hashable]:
    """Starts of the servers."""
    return None, one.start


def within_block(one: Source) -> tuple[Hashable, Hashable]:
    """What a prompt has in one block."""
    return one.class_, (one.prompt, one.queue, one.block)


def within_start(one: Source) -> tuple[Hashable, Hashable]:
    """What a prompt has in one start."""
    return one.class_, (one.prompt, one.start)


def mean_of(sample: Sample) -> tuple[float, dict[Source, float]]:
    """The mean over all values, of several starts the mean of their means; and what moves it. `sample` must not be empty."""
    counts = Counter(source.start for source, _ in sample)
    weights = [1 / len(counts) / counts[source.start] for source, _ in sample]
    mean = math.fsum(w * value for w, (_, value) in zip(weights, sample, strict=True))
    moves: defaultdict[Source, float] = defaultdict(float)
    for weight, (source, value) in zip(weights, sample, strict=True):
        moves[source] += weight * (value - mean)
    return mean, dict(moves)


def estimate(mean: float, moves: Moves, *, n: int) -> Estimate:
    """A mean of `n` values with the error that its moves make out; no error where a class has one prompt."""
    prompts = {(source.class_, source.prompt) for source in moves}
    few = min(Counter(class_ for class_, _ in prompts).values(), default=0) < 2
    if few:
        return Estimate(mean=mean, error=None, n=n, clusters=len(prompts))
    variance, degrees = spread(moves)
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=len(prompts))


def of_sample(sample: Sample) -> Estimate:
    """The mean of a sample that is not empty, with its interval."""
    mean, moves = mean_of(sample)
    return estimate(mean, moves, n=len(sample))


def spread(moves: Moves) -> Variance:
    """The variance of what moves a mean, and its degrees of freedom."""
    prompts = between(moves, by_prompt)
    if len({source.start for source in moves}) > 1:
        return widest(prompts, between(moves, by_start), between(moves, within_start))
    if blocks_known(moves):
        return joined(prompts, between(moves, by_block), between(moves, within_block))
    return prompts


def beside_prompts(moves: Moves) -> Variance | None:
    """What blocks, or of several starts the starts, add to the variance over prompts; None where they add nothing."""
    several = len({source.start for source in moves}) > 1
    if not several and not blocks_known(moves):
        return None
    whole = between(moves, by_start if several else by_block)
    extra = whole[0] - between(moves, within_start if several else within_block)[0]
    return (extra, whole[1]) if extra > 0 else None


def blocks_known(moves: Iterable[Source]) -> bool:
    """Whether a source's block is known of all, and some had two."""
    blocks = {by_block(source) for source in moves}
    several = Counter(queue for queue, _ in blocks).most_common(1)
    return bool(several) and several[0][1] > 1 and all(block is not None for _, block in blocks)


def between(moves: Moves, key: Key) -> Variance:
    """The variance that units make out, summed over strata; one unit of a stratum says nothing."""
    sums: defaultdict[Hashable, defaultdict[Hashable, float]] = defaultdict(lambda: defaultdict(float))
    for source, move in moves.items():
        stratum, unit = key(source)
        sums[stratum][unit] += move
    several = [list(units.values()) for units in sums.values() if len(units) > 1]
    return added(
        [(len(own) / (len(own) - 1) * math.fsum(one * one for one in own), len(own) - 1.0) for own in several]
    )


def added(parts: Sequence[Variance]) -> Variance:
    """The sum of independent variances (Satterthwaite)."""
    variance = math.fsum(part for part, _ in parts)
    if not variance or math.isinf(variance):
        return variance, max(math.fsum(degrees for _, degrees in parts), 1.0)
    return variance, variance**2 / math.fsum(part**2 / degrees for part, degrees in parts)


def joined(prompts: Variance, blocks: Variance, within: Variance) -> Variance:
    """Of two ways of clustering that cross: what blocks have beside what is within them goes on top of the prompts."""
    extra = blocks[0] - within[0]
    return prompts if extra <= 0 else _both(prompts, blocks, within)


def widest(
    prompts: Variance, starts: Variance, within: Variance, probability: float = (1 + CONFIDENCE) / 2
) -> Variance:
    """Of the interval over prompts, the one over starts and the one over both, that which is widest."""
    parts = (prompts, starts, _both(prompts, starts, within))
    return max(parts, key=lambda one: t_quantile(probability, round(one[1], 1)) * math.sqrt(one[0]))


def _both(prompts: Variance, others: Variance, within: Variance) -> Variance:
    variance = max(prompts[0] + others[0] - within[0], 0.0)
    doubt = math.fsum(part**2 / degrees for part, degrees in (prompts, others, within))
    least = min(prompts[1], others[1])
    return variance, max(variance**2 / doubt, least) if doubt else least
