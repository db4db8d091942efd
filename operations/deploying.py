"""The command that deploys an experiment, whole, for every line that asks for it. What else a deployment needs is in
deployment.yaml, so that no option of it can be forgotten."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
_COMMAND = ".venv/bin/npx cdk deploy --all"


def deploy_command(name: str) -> str:
    """For the experiment of this name; the one that cdk.json names needs no option."""
    file = _file_of(name)
    default = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]["experiment"]
    return _COMMAND if file == default else f"{_COMMAND} -c experiment={file}"


@cache
def _file_of(name: str) -> str:
    """The file in `experiments/`; of an experiment that lies elsewhere a word for it."""
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(data, dict) and data.get("name") == name:
            return str(path.relative_to(ROOT))
    return f"<the file of {name}>"
