"""Resource claims: what containers, pods, templates and classes say of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.checking.rendered import Rendered, label
from cdk8s_charts.scheduling.allocator import NEURON_CLASS
from cdk8s_charts.scheduling.devices import DRIVER, Device, published
from cdk8s_charts.scheduling.errors import SchedulingError
from cdk8s_charts.scheduling.selectors import matches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdk8s_charts.scheduling.workloads import Object

PARAMETERS = {
    "NeuronConfig": {"apiVersion", "kind", "logicalNeuronCore"},
    "UltraServerConfig": {"apiVersion", "kind", "ultraserverMode"},
}
"""Fields that the Neuron DRA driver decodes strictly: an unknown one leaves the pod in ContainerCreating."""
_REQUESTS = "spec.spec.devices.requests"


def undeclared_claim(rendered: Rendered) -> Iterator[Fault]:
    """A container uses a claim that its pod does not hold: the API server refuses the pod, not the Deployment."""
    for pod, path, container in rendered.containers():
        held = {claim["name"] for claim in pod.spec.get("resourceClaims") or ()}
        for claim in (container.get("resources") or {}).get("claims") or ():
            if claim["name"] not in held:
                yield Fault(
                    pod.label,
                    f"{path}.resources.claims",
                    f"claim {claim['name']!r} is not among the pod's resourceClaims",
                    "declare it there or remove it here",
                )


def unused_claim(rendered: Rendered) -> Iterator[Fault]:
    """A pod holds devices that no container of it sees."""
    for pod in rendered.pods:
        used = {
            claim["name"]
            for _, container in pod.containers()
            for claim in (container.get("resources") or {}).get("claims") or ()
        }
        for claim in pod.spec.get("resourceClaims") or ():
            if claim["name"] not in used:
                yield Fault(
                    pod.label,
                    f"{pod.spec_path}.resourceClaims[{claim['name']}]",
                    "no container uses it",
                    "name it in resources.claims of the container that needs the devices",
                )


def unknown_claim_request(rendered: Rendered) -> Iterator[Fault]:
    """A container asks for a request that the claim does not have."""
    templates = rendered.named("ResourceClaimTemplate")
    for pod, path, container in rendered.containers():
        sources = {
            claim["name"]: claim.get("resourceClaimTemplateName")
            for claim in pod.spec.get("resourceClaims") or ()
        }
        for claim in (container.get("resources") or {}).get("claims") or ():
            template = templates.get(sources.get(claim["name"]) or "")
            wanted = claim.get("request")
            if template and wanted and wanted not in {entry["name"] for entry in _requests(template)}:
                yield Fault(
                    pod.label,
                    f"{path}.resources.claims[{claim['name']}].request",
                    f"{label(template)} has no request {wanted!r}",
                    f"use one of {', '.join(entry['name'] for entry in _requests(template))}",
                )


def missing_claim_template(rendered: Rendered) -> Iterator[Fault]:
    """Without its template a pod is never even considered by the scheduler."""
    templates = rendered.named("ResourceClaimTemplate")
    for pod in rendered.pods:
        for claim in pod.spec.get("resourceClaims") or ():
            name = claim.get("resourceClaimTemplateName")
            if name not in templates:
                yield Fault(
                    pod.label,
                    f"{pod.spec_path}.resourceClaims[{claim['name']}].resourceClaimTemplateName",
                    f"template {name!r} is not rendered",
                    f"use one of {', '.join(sorted(templates)) or 'none: render a template'}",
                )


def missing_device_class(rendered: Rendered) -> Iterator[Fault]:
    """The API server admits a class that does not exist; the pod then stays pending."""
    classes = {NEURON_CLASS["metadata"]["name"], *rendered.named("DeviceClass")}
    for template in rendered.named("ResourceClaimTemplate").values():
        for entry in _requests(template):
            name = (entry.get("exactly") or entry).get("deviceClassName")
            if name not in classes:
                yield Fault(
                    label(template),
                    f"{_REQUESTS}[{entry['name']}].exactly.deviceClassName",
                    f"device class {name!r} exists neither here nor in the Neuron chart",
                    f"use {', '.join(sorted(classes))}",
                )


def unpublished_attribute(rendered: Rendered) -> Iterator[Fault]:
    """A misspelt `matchAttribute` is admitted and then never satisfied, without a word about the attribute."""
    known = {name for device in _devices(rendered) for name, _ in device.attributes}
    for template in rendered.named("ResourceClaimTemplate").values():
        for number, entry in enumerate(template["spec"]["spec"]["devices"].get("constraints") or ()):
            if "matchAttribute" in entry and entry["matchAttribute"] not in known:
                yield Fault(
                    label(template),
                    f"spec.spec.devices.constraints[{number}].matchAttribute",
                    f"no device publishes {entry['matchAttribute']!r}",
                    f"use one of {', '.join(sorted(name for name in known if 'group' in name))}",
                )


def failing_selector(rendered: Rendered) -> Iterator[Fault]:
    """A selector that cannot be evaluated, or that chooses no device."""
    devices = _devices(rendered)
    for template in rendered.named("ResourceClaimTemplate").values():
        for entry in _requests(template):
            for number, selector in enumerate((entry.get("exactly") or entry).get("selectors") or ()):
                path = f"{_REQUESTS}[{entry['name']}].exactly.selectors[{number}].cel.expression"
                expression = selector["cel"]["expression"]
                try:
                    chosen = [device for device in devices if matches(expression, device)]
                except SchedulingError as error:
                    yield Fault(label(template), path, str(error), "correct the expression")
                    continue
                if not chosen:
                    yield Fault(
                        label(template),
                        path,
                        f"{expression} chooses none of the {len(devices)} devices of "
                        f"{rendered.experiment.cluster.instance.name}",
                        "correct the constant",
                    )


def unknown_claim_parameter(rendered: Rendered) -> Iterator[Fault]:
    """The driver decodes its parameters strictly, and says so only on the node."""
    for template in rendered.named("ResourceClaimTemplate").values():
        for number, entry in enumerate(template["spec"]["spec"]["devices"].get("config") or ()):
            opaque = entry.get("opaque") or {}
            if opaque.get("driver") != DRIVER:
                continue
            parameters = opaque.get("parameters") or {}
            known = PARAMETERS.get(parameters.get("kind", ""), {"apiVersion", "kind"})
            wrong = sorted(parameters.keys() - known)
            if parameters.get("kind") not in PARAMETERS:
                wrong.append(f"kind {parameters.get('kind')}")
            if parameters.get("apiVersion") != f"{DRIVER}/v1":
                wrong.append(f"apiVersion {parameters.get('apiVersion')}")
            for name in wrong:
                yield Fault(
                    label(template),
                    f"spec.spec.devices.config[{number}].opaque.parameters",
                    f"the Neuron DRA driver does not know {name}",
                    f"use {DRIVER}/v1 NeuronConfig with logicalNeuronCore",
                )


def _requests(template: Object) -> list[Object]:
    found: list[Object] = template["spec"]["spec"]["devices"]["requests"]
    return found


def _devices(rendered: Rendered) -> tuple[Device, ...]:
    instance = rendered.experiment.cluster.instance
    return published(instance.name, node="node", devices=instance.devices, efa=instance.efa_interfaces > 0)
