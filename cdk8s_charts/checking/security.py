"""What pods may do: privileges, tokens, accounts, secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cdk8s_charts.allocation import holds_devices
from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.pod import IMAGE_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdk8s_charts.checking.rendered import Rendered

_SECRET_NAME = re.compile(r"(^|_)(TOKEN|PASSWORD|SECRET|API_KEY|ACCESS_KEY)(_|$)")


def host_access(rendered: Rendered) -> Iterator[Fault]:
    """The host's network, processes or files; devices come through claims, so nothing here needs them."""
    for pod in rendered.pods:
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(name):
                yield Fault(pod.label, f"{pod.spec_path}.{name}", "the pod shares the host's", "remove it")
        for volume in pod.spec.get("volumes") or ():
            if "hostPath" in volume:
                yield Fault(
                    pod.label,
                    f"{pod.spec_path}.volumes[{volume['name']}].hostPath",
                    "it opens the host's files",
                    "use an emptyDir or a claim",
                )


def privileged_container(rendered: Rendered) -> Iterator[Fault]:
    """No privilege, no escalation, no capability; the last two are left to a container that holds devices where the
    experiment says so."""
    level = rendered.experiment.baseline.serving.pod_security
    for pod, path, container in rendered.containers():
        context = container.get("securityContext") or {}
        where = f"{path}.securityContext"
        spared = level == IMAGE_DEFAULTS and holds_devices(container)
        if context.get("privileged"):
            yield Fault(pod.label, f"{where}.privileged", "the container is privileged", "set it to false")
        if context.get("allowPrivilegeEscalation", True) and not spared:
            yield Fault(
                pod.label, f"{where}.allowPrivilegeEscalation", "it is not switched off", "set it to false"
            )
        capabilities = context.get("capabilities") or {}
        kept = "ALL" not in (capabilities.get("drop") or ())
        if (kept and not spared) or capabilities.get("add"):
            yield Fault(
                pod.label,
                f"{where}.capabilities",
                "capabilities are left to the container",
                "drop ALL and add none",
            )


def missing_seccomp(rendered: Rendered) -> Iterator[Fault]:
    """The runtime's default filter of system calls."""
    for pod in rendered.pods:
        profile = (pod.spec.get("securityContext") or {}).get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield Fault(
                pod.label,
                f"{pod.spec_path}.securityContext.seccompProfile",
                "none is set",
                "set type: RuntimeDefault",
            )


def mounted_token(rendered: Rendered) -> Iterator[Fault]:
    """No pod here talks to the API server, so none carries a token for it."""
    for pod in rendered.pods:
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield Fault(
                pod.label,
                f"{pod.spec_path}.automountServiceAccountToken",
                "a token for the API server is mounted",
                "set it to false",
            )


def missing_service_account(rendered: Rendered) -> Iterator[Fault]:
    """Pod Identity gives rights to an account; a pod of `default` or of an unknown account has none, or never starts."""
    accounts = rendered.named("ServiceAccount")
    for pod in rendered.pods:
        name = pod.spec.get("serviceAccountName")
        if name not in accounts:
            yield Fault(
                pod.label,
                f"{pod.spec_path}.serviceAccountName",
                f"service account {name!r} is not rendered",
                f"use one of {', '.join(sorted(accounts))}",
            )


def secret_in_the_open(rendered: Rendered) -> Iterator[Fault]:
    """A variable that is named like a secret has its value from a Secret."""
    for pod, path, container in rendered.containers():
        for entry in container.get("env") or ():
            if _SECRET_NAME.search(entry["name"]) and entry.get("value"):
                yield Fault(
                    pod.label,
                    f"{path}.env[{entry['name']}]",
                    "its value is written out",
                    "use valueFrom.secretKeyRef",
                )


def unknown_secret(rendered: Rendered) -> Iterator[Fault]:
    """Secrets are made by people, so only those that the experiment names can exist."""
    experiment = rendered.experiment
    known = {experiment.token_secret, *(arm.serving.api_key_secret for arm in experiment.arms)} - {None}
    known |= set(rendered.named("Secret"))
    for pod, path, container in rendered.containers():
        for entry in container.get("env") or ():
            reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
            if reference is not None and reference.get("name") not in known:
                yield Fault(
                    pod.label,
                    f"{path}.env[{entry['name']}].valueFrom.secretKeyRef",
                    f"the experiment names no Secret {reference.get('name')!r}",
                    f"use {', '.join(sorted(map(str, known))) or 'weights.token_secret or serving.api_key_secret'}",
                )
