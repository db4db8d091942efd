"""All rules that check the values of an experiment file together, by subject.

Each rule takes the file (and the prompts) and yields problems; rules do not know each other, and a name that the
catalogue lacks is one rule's problem and silences the others. A rule that reads a value that could not be validated ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from trnspec.core.findings import Finding
from trnspec.experiment.checks import cluster_section, hardware, names, treatments, workload
from trnspec.experiment.forms import UNREAD, Unread
from trnspec.experiment.prompts import Prompt
from trnspec.experiment.sweeps import ExpandedFile


def problems(file: ExpandedFile, prompts: tuple[Prompt, ...], *, complete: bool = True) -> Iterator[Finding]:
    """Yield every reason why `file` cannot work; if it is not `complete`, some of its values are `UNREAD`."""

    def judged(rules: Iterable[Callable[..., Iterator[Finding]]], *values: object) -> Iterator[Finding]:
        for rule in rules:
            try:
                yield from (finding for finding in rule(*values) if finding.value is not UNREAD)
            except (Unread, TypeError):  # functions written in C raise TypeError for it
                if complete:
                    raise

    for subject in (names, treatments, hardware, cluster_section):
        yield from judged(subject.RULES, file)
    for arm in file.arms:
        yield from judged(treatments.ARM_RULES, file, arm)
        with suppress(Unread):
            for speculating in treatments.treated(file, arm):
                yield from judged(treatments.DRAFT_RULES, file, speculating)
    if file.serve is not None:
        yield from judged(cluster_section.SERVICE_RULES, file, file.serve)
    yield from judged(workload.RULES, file, prompts)
