"""Values of templates and manifests as they stand in a sentence."""

from __future__ import annotations

import json
from typing import Any


def short(value: Any) -> str:
    """A value with CloudFormation's functions folded into `<Name.Attribute>`."""
    if isinstance(value, str):
        return value
    return _function(value) or json.dumps(_folded(value), sort_keys=True)


def _function(value: Any) -> str | None:
    """What one of the usual functions refers to; `None` for anything else."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    match next(iter(value.items())):
        case ("Ref" | "Fn::ImportValue", str(name)):
            return f"<{name}>"
        case ("Fn::GetAtt", [str(name), str(attribute)]):
            return f"<{name}.{attribute}>"
        case ("Fn::Join", [str(separator), list(parts)]):
            return separator.join(short(part) for part in parts)
        case ("Fn::Sub", str(text)):
            return text
    return None


def _folded(value: Any) -> Any:
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if isinstance(value, dict):
        return _function(value) or {key: _folded(inner) for key, inner in value.items()}
    return value
