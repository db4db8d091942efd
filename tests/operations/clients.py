"""boto3 clients that all tests share: making one takes longer than most tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import boto3
import moto.core.models  # before any client is made, or moto would not see its calls
import moto.eks.utils
from botocore.config import Config
from botocore.stub import Stubber
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult
from moto.iam.responses import IamResponse

from tests.infra.pipeline.iam import Request, allows

REGION = "us-east-2"
# For the ARN of each role moto would make a session of its own, which takes longer than the rest of a cluster.
moto.eks.utils.Session = cache(boto3.Session)  # which moto imports by name


def shared_client(service: str, region: str = REGION) -> Any:
    """With made-up keys, in the region of the reference experiment or another."""
    return _client(service, region)


@cache
def _client(service: str, region: str) -> Any:
    retries: Any = {"total_max_attempts": 1}
    return _session().client(service, region_name=region, config=Config(retries=retries))


@contextmanager
def says(service: str, **answers: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """As long as it lasts, a service answers these operations so, in the place of moto."""
    events = shared_client(service).meta.events
    hooks = {f"before-call.{service}.{operation}": _instead(answer) for operation, answer in answers.items()}
    for event, hook in hooks.items():
        events.register(event, hook)
    try:
        yield
    finally:
        for event, hook in hooks.items():
            events.unregister(event, hook)


def _instead(answer: Callable[[], dict[str, Any]]) -> Callable[..., Any]:
    return lambda **_: (SimpleNamespace(status_code=200, headers={}, raw=None), answer())


def make_stacks(
    name: str,
    *parts: str,
    region: str = REGION,
    tag: str = "",
    protected: tuple[str, ...] = ("storage", "cluster"),
) -> None:
    """Stacks as this project deploys them, with one topic in each."""
    template: dict[str, Any] = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    for part in parts:
        shared_client("cloudformation", region).create_stack(
            StackName=f"{name}-{part}",
            TemplateBody=json.dumps(template),
            Tags=[{"Key": "experiment", "Value": tag or name}],
            EnableTerminationProtection=part in protected,
        )


def stack_names(region: str = REGION) -> list[str]:
    """Of the stacks that stand."""
    found = shared_client("cloudformation", region).describe_stacks()["Stacks"]
    return [stack["StackName"] for stack in found]


def protected() -> dict[str, bool]:
    """The stacks of the reference, and whether they are protected."""
    found = shared_client("cloudformation").describe_stacks()["Stacks"]
    return {one["StackName"].removeprefix("qwen3-32b-"): one["EnableTerminationProtection"] for one in found}


_STUBS: dict[tuple[str, str], Stubber] = {}


def stubbed(service: str, region: str = REGION) -> tuple[Any, Stubber]:
    """A client that answers what this test tells it to; the Stubber refuses shapes that botocore does not know."""
    client = _bare_client(service, region)
    if (service, region) in _STUBS:
        _STUBS[service, region].deactivate()
    stub = _STUBS[service, region] = Stubber(client)
    stub.activate()
    return client, stub


@cache
def _bare_client(service: str, region: str) -> Any:
    return _session().client(service, region_name=region)


@cache
def _session() -> boto3.Session:
    """One, which reads the model of a service once for all regions."""
    return boto3.Session(aws_access_key_id="AKIAIOSFODNN7EXAMPLE", aws_secret_access_key="made-up")


def _simulate(self: Any) -> ActionResult:
    """`iam:SimulatePrincipalPolicy`, which moto lacks, by the tests' own evaluator: a role's policies, inside its boundary."""
    role = self.backend.get_role(self._get_param("PolicySourceArn").rpartition("/")[2])
    action, resource = self._get_param("ActionNames")[0], self._get_param("ResourceArns")[0]
    entries = self._get_param("ContextEntries") or []
    known = {one["ContextKeyName"]: one["ContextKeyValues"][0] for one in entries}
    request = Request(action, resource, {"iam:PermissionsBoundary": None, **known})
    given = [*role.policies.values(), *map(_document, role.managed_policies.values())]
    own = [statement for document in given for statement in json.loads(document)["Statement"]]
    edges = [
        one for one in self.backend.managed_policies.values() if one.arn == role.permissions_boundary_arn
    ]
    anything = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]
    around = json.loads(_document(edges[0]))["Statement"] if edges else anything

    def kept(*, denying: bool) -> bool:
        lists = ([one for one in some if denying or one["Effect"] == "Allow"] for some in (own, around))
        return all(allows(request, some) for some in lists)

    allowed = "allowed" if kept(denying=True) else "explicitDeny" if kept(denying=False) else "implicitDeny"
    result = {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": allowed}
    return ActionResult({"EvaluationResults": [result]})


ACTIVITIES: dict[str, list[dict[str, Any]]] = {}
"""By Auto Scaling group, of which moto knows no activity."""


def _activities(self: Any) -> ActionResult:
    return ActionResult({"Activities": ACTIVITIES.get(self._get_param("AutoScalingGroupName"), [])})


AutoScalingResponse.describe_scaling_activities = _activities  # pyrefly: ignore[method-assign]  # moto answers that there is none


def _document(policy: Any) -> str:
    """Of a managed policy."""
    return next(str(one.document) for one in policy.versions if one.is_default)


IamResponse.simulate_principal_policy = _simulate  # moto finds an operation by its name
