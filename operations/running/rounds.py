"""Which arms stand at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.placement import batches, place

if TYPE_CHECKING:
    from experiment import Arm, Experiment


def rounds(experiment: Experiment) -> tuple[tuple[Arm, ...], ...]:
    """Groups of served arms, each with the baseline in it, so that every comparison is made within one hour.

    The placement's first batch stays as it is; later ones give a place to the baseline, which costs a round more now
    and then. Where only one arm fits at once, each stands alone and the comparison is between hours.
    """
    served = experiment.served_arms
    first = tuple(arm for arm in batches(experiment)[0] if arm in served)
    rest = [arm for arm in experiment.served_arms if arm not in first]
    if not rest:
        return (first,)
    room = len(batches(experiment)[0])
    if room == 1:
        return (first, *((arm,) for arm in rest))
    step = room - 1
    later = (tuple(rest[start : start + step]) for start in range(0, len(rest), step))
    return (first, *((experiment.baseline, *group) for group in later))


def nodes_for(experiment: Experiment) -> int:
    """Trn2 nodes of the largest round."""
    return max(where.node for where in place(experiment)) + 1
