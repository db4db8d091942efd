"""`iam:SimulatePrincipalPolicy`, which moto lacks, answered by moto's own evaluator of policies from a role's own ones."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.responses import IamResponse

_WORDS = {
    PermissionResult.PERMITTED: "allowed",
    PermissionResult.DENIED: "explicitDeny",
    PermissionResult.NEUTRAL: "implicitDeny",
}


def _simulate(self: Any) -> ActionResult:
    role = self.backend.get_role(self._get_param("PolicySourceArn").rpartition("/")[2])
    action, resource = self._get_param("ActionNames")[0], self._get_param("ResourceArns")[0]
    found = {
        IAMPolicy({"policy_document": document}).is_action_permitted(action, resource)
        for document in role.policies.values()
    }
    order = (PermissionResult.DENIED, PermissionResult.PERMITTED, PermissionResult.NEUTRAL)
    decision = next((one for one in order if one in found), PermissionResult.NEUTRAL)
    result = {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": _WORDS[decision]}
    return ActionResult({"EvaluationResults": [result]})


def install() -> None:
    """Teach moto, of this process; safe to repeat."""
    IamResponse.simulate_principal_policy = _simulate  # type: ignore[attr-defined] # moto finds an operation by its name
