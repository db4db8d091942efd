"""The committed bootstrap policies as an administrator would deploy them in account 111122223333."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import yaml

from infra import ROOT

FILE = ROOT / "infra/bootstrap/policies.yaml"
ACCOUNT = "111122223333"
EXECUTOR = f"arn:aws:iam::{ACCOUNT}:role/cdk-hnb659fds-cfn-exec-role-{ACCOUNT}-us-east-2"


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms."""


def _short_form(loader: yaml.SafeLoader, suffix: str, node: yaml.ScalarNode) -> dict[str, Any]:
    return {suffix: loader.construct_scalar(node)}


_Loader.add_multi_constructor("!", _short_form)


@cache
def statements(name: str) -> list[dict[str, Any]]:
    """Those of `Boundary` or `Execution`, parameters filled in with their defaults."""
    template = yaml.load(FILE.read_text(encoding="utf-8"), Loader=_Loader)
    defaults = {key: entry["Default"] for key, entry in template["Parameters"].items()}
    document = template["Resources"][name]["Properties"]["PolicyDocument"]
    found: list[dict[str, Any]] = _filled(document["Statement"], defaults)
    return found


def _filled(value: Any, defaults: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(item, defaults) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Ref"}:
        text = defaults[value["Ref"]]
        return text.split(",") if "," in text else text
    if set(value) == {"Sub"}:
        pseudo = {"AWS::Partition": "aws", "AWS::AccountId": ACCOUNT, **defaults}
        return re.sub(r"\$\{([\w:]+)\}", lambda found: pseudo[found[1]], value["Sub"])
    return {key: _filled(inner, defaults) for key, inner in value.items()}
