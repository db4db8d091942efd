"""What the values of a file mean together: every rule that refuses an experiment, by subject.

Each rule takes the file (and the prompts) and yields problems; rules do not know each other, and a name that the
catalogue lacks is one rule's problem and silences the others. A rule that reads a value that could not be validated ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from core.findings import Finding
from experiment.checks import cluster_section, hardware, names, treatments, workload
from experiment.forms import UNREAD, Unread
from experiment.prompts import Prompt
from experiment.sweeps import ExpandedFile


def problems(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Every reason for which `file` cannot work."""
    for subject in (names, treatments, hardware, cluster_section):
        for rule in subject.RULES:
            yield from _judged(rule, file)
    for service_rule in cluster_section.SERVICE_RULES if file.serve is not None else ():
        yield from _judged(service_rule, file, file.serve)
    for workload_rule in workload.RULES:
        yield from _judged(workload_rule, file, prompts)


def _judged(rule: Callable[..., Iterator[Finding]], *values: object) -> Iterator[Finding]:
    try:
        yield from (found for found in rule(*values) if found.value is not UNREAD)
    except Unread:
        return
