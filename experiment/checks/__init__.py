"""What the values of a file mean together: every rule that refuses an experiment, by subject.

Each rule takes the file (and the prompts) and yields problems; rules do not know each other, and a name that the
catalogue lacks is one rule's problem and silences the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.checks import cluster_section, hardware, names, service, treatments, workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.findings import Finding
    from experiment.prompts import Prompt
    from experiment.sweeps import ExpandedFile


def problems(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Every reason for which `file` cannot work."""
    for subject in (names, treatments, hardware, cluster_section):
        for rule in subject.RULES:
            yield from rule(file)
    if file.serve is not None:
        for service_rule in service.RULES:
            yield from service_rule(file, file.serve)
    for workload_rule in workload.RULES:
        yield from workload_rule(file, prompts)
