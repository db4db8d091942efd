"""What the values of a file mean together: every rule that refuses an experiment, by subject.

Each rule takes the file (and the prompts) and yields problems; rules do not know each other, and a name that the
catalogue lacks is one rule's problem and silences the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.checks import (
    capacity,
    cluster,
    names,
    pairing,
    placing,
    serve,
    speculation,
    weights,
    workload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiment.arms import Prompt
    from experiment.finding import Finding
    from experiment.schema import ExpandedFile


RULES: tuple[Callable[[ExpandedFile], Iterator[Finding]], ...] = (
    names.catalogue_names,
    names.repositories,
    names.dns_labels,
    names.distinct_arms,
    names.own_namespace,
    weights.tokens,
    pairing.same_tokenizer,
    pairing.smaller_draft,
    pairing.head_or_model,
    pairing.medusa_heads,
    speculation.comparable_arms,
    speculation.reachable_modes,
    speculation.one_at_a_time,
    speculation.window,
    speculation.trained_window,
    placing.groups,
    placing.cores,
    placing.memory,
    placing.context_length,
    placing.runtime_fits,
    placing.claims,
    placing.artifact_source,
    cluster.kubernetes_version,
    cluster.node_driver,
    cluster.zones,
    cluster.admin_access,
    capacity.purchase,
    capacity.end,
    capacity.counts,
    serve.served_arm,
    serve.replicas,
    serve.bounds,
    serve.certificate,
    serve.callers,
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
