"""Rendered objects as the files that are reviewed, and the way back from the files to the objects.

What is deployed is read from the files, so it is what was reviewed; a fingerprint beside them tells whether they were
rendered from the experiment at hand. Pure: reading needs no jsii.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from experiment.arms import digest
from experiment.finding import Misuse

if TYPE_CHECKING:
    from pathlib import Path

    from experiment.arms import Experiment

FINGERPRINT = "rendered.sha256"
_REMEDY = "run .venv/bin/python -m cdk8s_charts EXPERIMENT and review what changes"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FastDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Twenty times as fast; every wheel of PyYAML has it."""
_HEADER = "# Rendered by `python -m cdk8s_charts`; edit the experiment, never this file.\n"


@dataclass(frozen=True)
class ManifestFile:
    """One chart as a file; placeholders stand as `${NAME}`."""

    name: str
    objects: tuple[dict[str, Any], ...]

    def yaml(self) -> str:
        """The file's text."""
        return _HEADER + yaml.dump_all(
            self.objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, explicit_start=True
        )


def read(experiment: Experiment, parent: Path) -> tuple[ManifestFile, ...]:
    """The committed files of an experiment in `parent`, in apply order.

    Raises `Misuse` when they are missing, were rendered from something else, or were changed by hand.
    """
    folder = parent / experiment.name
    try:
        recorded = (folder / FINGERPRINT).read_text(encoding="utf-8")
        contents = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    except (OSError, UnicodeDecodeError):
        raise Misuse(f"{folder}: experiment {experiment.name} is not rendered there; {_REMEDY}") from None
    if recorded != _fingerprint(experiment, contents):
        raise Misuse(
            f"{folder}: rendered from another state of {experiment.name}, or edited since; {_REMEDY}"
        )
    return tuple(
        ManifestFile(name, tuple(yaml.load_all(text, Loader=_Loader))) for name, text in contents.items()
    )


def texts(experiment: Experiment, files: tuple[ManifestFile, ...], parent: Path) -> dict[Path, str]:
    """What must stand in `parent/<experiment>/`."""
    folder = parent / experiment.name
    contents = {file.name: file.yaml() for file in files}
    return {
        folder / FINGERPRINT: _fingerprint(experiment, contents),
        **{folder / name: text for name, text in contents.items()},
    }


def _fingerprint(experiment: Experiment, contents: dict[str, str]) -> str:
    """Two lines: what was rendered, and what came of it."""
    files = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    return f"experiment {digest(experiment)}\nmanifests {files}\n"


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Paths that writing `wanted` would change, make or remove."""
    folder = next(iter(wanted)).parent
    left = [path for path in sorted(folder.glob("*.yaml")) if path not in wanted]
    return left + [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def write(wanted: dict[Path, str]) -> list[Path]:
    """Write the files, the fingerprint last, and remove what an earlier rendering left; returns what changed."""
    changed = stale(wanted)
    for path in sorted(changed, key=lambda path: path.name == FINGERPRINT):
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


class _Dumper(_FastDumper):  # type: ignore[misc]  # C code has no types
    """Long texts as blocks, no aliases: what a reviewer reads best."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
