"""What the values of a file mean together: every rule that refuses an experiment, by subject.

Each rule takes the file (and the prompts) and yields problems; rules do not know each other, and a name that the
catalogue lacks is one rule's problem and silences the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.checks import cluster_section, hardware, names, service, treatments, workload
from experiment.checks import names as weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiment.arms import Prompt
    from experiment.finding import Finding
    from experiment.model import ExpandedFile


RULES: tuple[Callable[[ExpandedFile], Iterator[Finding]], ...] = (
    names.catalogue_names,
    names.repositories,
    names.dns_labels,
    names.distinct_arms,
    names.own_namespace,
    weights.tokens,
    treatments.same_tokenizer,
    treatments.smaller_draft,
    treatments.head_or_model,
    treatments.medusa_heads,
    treatments.comparable_arms,
    treatments.engine_keys,
    treatments.reachable_modes,
    treatments.one_at_a_time,
    treatments.window,
    treatments.trained_window,
    hardware.groups,
    hardware.cores,
    hardware.memory,
    hardware.context_length,
    hardware.runtime_fits,
    hardware.claims,
    hardware.artifact_source,
    cluster_section.kubernetes_version,
    cluster_section.node_driver,
    cluster_section.zones,
    cluster_section.admin_access,
    cluster_section.purchase,
    cluster_section.end,
    cluster_section.counts,
    service.served_arm,
    service.replicas,
    service.bounds,
    service.certificate,
    service.callers,
)
WORKLOAD_RULES: tuple[Callable[[ExpandedFile, tuple[Prompt, ...]], Iterator[Finding]], ...] = (
    workload.lengths,
    workload.plan_size,
    workload.sampling,
    workload.thinking,
    workload.every_prompt_asked,
    workload.distinct_levels,
    workload.quality_in_a_cluster,
)


def problems(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Iterator[Finding]:
    """Every reason for which `file` cannot work."""
    for rule in RULES:
        yield from rule(file)
    for workload_rule in WORKLOAD_RULES:
        yield from workload_rule(file, prompts)
