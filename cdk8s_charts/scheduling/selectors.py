"""Device selectors: CEL expressions, evaluated as the allocator does.

An expression that fails to evaluate (an attribute that a device lacks) makes the real scheduler fail the pod, so it is
an error here too and never "no match". cel-python does not check types and lacks Kubernetes' own functions; what goes
beyond comparisons of attributes is therefore refused instead of guessed.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-template-v1/
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from cdk8s_charts.scheduling.errors import NeverSatisfied, NotModelled

if TYPE_CHECKING:
    from cdk8s_charts.scheduling.devices import Device

_KNOWN = {
    *("expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary"),
    *("unary_not", "member", "member_dot", "member_index", "primary", "ident", "literal", "paren_expr"),
    *("list_lit", "exprlist"),
    *(f"relation_{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "in")),
}
"""Rules of cel-python's grammar that mean the same there and in Kubernetes."""


@cache
def matches(expression: str, device: Device) -> bool:
    """Whether the device is chosen.

    Raises `NeverSatisfied` for an expression that is no CEL or fails on this device, `NotModelled` for one that uses
    more of CEL than this model knows.
    """
    program = _program(expression)
    attributes: dict[str, dict[str, Any]] = {}
    for qualified, value in device.attributes:
        domain, _, name = qualified.partition("/")
        attributes.setdefault(domain, {})[name] = value
    known = {"driver": device.driver, "attributes": attributes, "capacity": {}}
    try:
        result = program.evaluate({"device": json_to_cel(known)})
    except CELEvalError as error:
        raise NeverSatisfied(
            f"selector {expression!r} fails on {device.name}: {_reason(error)}; "
            f"published are {', '.join(sorted(name for name, _ in device.attributes))}"
        ) from None
    if not isinstance(result, bool | celpy.celtypes.BoolType):
        raise NeverSatisfied(f"selector {expression!r} gives {result!r}; it must be true or false")
    return bool(result)


@cache
def _program(expression: str) -> Any:
    environment = _environment()
    try:
        tree = environment.compile(expression)
    except CELParseError:
        raise NeverSatisfied(f"selector {expression!r} is no CEL; correct its syntax") from None
    foreign = {str(part.data) for part in tree.iter_subtrees()} - _KNOWN
    names = {str(part.children[0]) for part in tree.iter_subtrees() if part.data == "ident"}
    if foreign or names != {"device"}:
        what = ", ".join(sorted(foreign or names - {"device"})) or "no device"
        raise NotModelled(
            f"selector {expression!r} uses {what}, which this check does not know; compare device.driver or "
            "device.attributes[...] with constants"
        )
    return environment.program(tree)


@cache
def _environment() -> celpy.Environment:
    """One for all: building the grammar takes a fifth of a second."""
    return celpy.Environment()


def _reason(error: CELEvalError) -> str:
    return str(error.args[0]) if error.args else "it cannot be evaluated"
