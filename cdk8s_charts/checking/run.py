"""All checks, run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdk8s_charts.checking import arms, claims, containers, jobs, names, network, security, volumes
from cdk8s_charts.checking.finding import Fault, Finding
from cdk8s_charts.checking.rendered import Rendered
from cdk8s_charts.errors import ChartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cdk8s_charts.manifest_file import ManifestFile
    from cdk8s_charts.scheduling.workloads import Object
    from experiment.arms import Experiment

_ALL: tuple[Callable[[Rendered], Iterator[Fault]], ...] = (
    names.duplicate_name,
    names.invalid_name,
    names.unnamed_image,
    names.invalid_label,
    names.wrong_namespace,
    names.unmarked_lab_object,
    names.selector_beside_template,
    names.missing_priority_class,
    claims.undeclared_claim,
    claims.unused_claim,
    claims.unknown_claim_request,
    claims.missing_claim_template,
    claims.missing_device_class,
    claims.unpublished_attribute,
    claims.failing_selector,
    claims.unknown_claim_parameter,
    volumes.mount_without_volume,
    volumes.missing_volume_claim,
    volumes.unbound_volume_claim,
    volumes.shared_volume_handle,
    volumes.missing_config_map,
    volumes.writable_store,
    volumes.memory_volume_beyond_limit,
    volumes.disk_volume_beyond_limit,
    containers.missing_resources,
    containers.request_above_limit,
    containers.unpinned_image,
    containers.missing_probe,
    containers.probe_of_no_port,
    containers.slow_probe,
    containers.invalid_port_name,
    containers.duplicate_entry,
    security.host_access,
    security.privileged_container,
    security.missing_seccomp,
    security.mounted_token,
    security.missing_service_account,
    security.secret_in_the_open,
    security.unknown_secret,
    network.service_without_pods,
    network.service_of_several,
    network.target_port_of_nobody,
    network.exposed_service,
    network.policy_without_pods,
    network.blocking_disruption_budget,
    arms.undeclared_difference,
    arms.missing_arm,
    arms.unraised_arm_runs,
    arms.surging_rollout,
    arms.short_progress_deadline,
    arms.stale_artifact_key,
    arms.unchecked_artifact,
    jobs.restarting_job,
    jobs.unasked_run,
    jobs.endless_job,
)
CHECKS = {check.__name__.replace("_", "-"): check for check in _ALL}
"""By name."""


def findings(experiment: Experiment, objects: Iterable[Object]) -> list[Finding]:
    """Everything that any check says, in the order of the checks."""
    rendered = Rendered(experiment, tuple(objects))
    return [Finding(name, *fault) for name, check in CHECKS.items() for fault in check(rendered)]


def refuse_findings(experiment: Experiment, files: Sequence[ManifestFile]) -> None:
    """Raises `ChartError`, a line a finding."""
    found = findings(experiment, (item for file in files for item in file.objects))
    if found:
        raise ChartError("\n".join(finding.line() for finding in found))
