"""A compiled artifact into S3: checked, compared with the baseline's, marker last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from store import FILES, MARKER
from store.bucket import BucketFolder
from store.errors import Incomplete, one_line
from store.files import described, of_text, to_json

INPUTS = "artifact_inputs.json"
"""What the artifact key is a hash of, for whoever wonders."""
CONFIGURATION = "neuron_config.json"
"""As the compiler saved it: what the engine really got, defaults included."""
DIFFERENCES = "neuron_config_differences.json"


def marker(key: str) -> str:
    """The marker's one line. A shell script in the serving pods compares it as text."""
    return json.dumps({"key": key}) + "\n"


def push(
    folder: Path,
    target: BucketFolder,
    *,
    key: str,
    inputs: str,
    required: Collection[str],
    baseline: BucketFolder | None,
    declared: Collection[str],
    report: Callable[[str], None],
) -> None:
    """Copy what was compiled; raises Incomplete when `folder` is no whole artifact or `target` is another arm's."""
    if (found := target.text(MARKER)) is not None:
        if found != marker(key):
            raise Incomplete(f"{target.address}/{MARKER}: says {found.strip()}, not key {key}; delete it")
        report(f"artifact {key}: complete already")
        return
    for name in required:
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise Incomplete(
                f"{folder / name}: missing or empty, so compilation did not finish; compile again"
            )
    texts = {INPUTS: inputs, **_differences(folder, baseline, declared)}
    files = [described(folder, path) for path in _files(folder)]
    for file in files:
        if not target.has(file):
            target.upload(folder / file.path, file)
            report(f"{file.path}: {file.size / 1e6:,.1f} MB stored")
    for name, text in texts.items():
        target.put_text(name, text)
        files.append(of_text(name, text))
    target.put_text(FILES, json.dumps({"files": to_json(files)}, indent=1) + "\n")
    target.put_text(MARKER, marker(key))


def differences(one: Any, other: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Every leaf at which two configurations differ: dotted path to both values, `None` for an absent one."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            inner: pair
            for key in sorted(one.keys() | other.keys())
            for inner, pair in differences(
                one.get(key), other.get(key), f"{path}.{key}" if path else key
            ).items()
        }
    return {} if one == other else {path: (one, other)}


def _differences(folder: Path, baseline: BucketFolder | None, declared: Collection[str]) -> dict[str, str]:
    """What the compiler set differently from the baseline, beyond the declared treatment or not.

    Equal requests are not yet an equal engine: the runtime fills defaults in by itself.
    """
    if baseline is None or not (folder / CONFIGURATION).is_file():
        return {}
    theirs = baseline.text(CONFIGURATION)
    content: dict[str, Any] = {"baseline": baseline.address, "compared": theirs is not None}
    if theirs is not None:
        try:
            found = differences(json.loads(theirs), json.loads((folder / CONFIGURATION).read_text()))
        except ValueError as error:
            raise Incomplete(
                f"{folder / CONFIGURATION} or the baseline's: no JSON ({error}); compile again"
            ) from None
        content["differences"] = [
            {
                "path": path,
                "baseline": pair[0],
                "this": pair[1],
                "declared": not set(path.split(".")).isdisjoint(declared),
            }
            for path, pair in found.items()
        ]
    return {DIFFERENCES: json.dumps(content, indent=1, sort_keys=True) + "\n"}


def _files(folder: Path) -> list[Path]:
    """Every file. Raises Incomplete for a folder that may not be read, which `Path.rglob` leaves out in silence."""
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=_refuse)
        for name in names
        if name not in (MARKER, FILES, INPUTS, DIFFERENCES) and Path(parent, name).is_file()
    )


def _refuse(error: OSError) -> None:
    raise Incomplete(
        f"{error.filename}: {one_line(error)}; the artifact would lack it, give the group read access"
    ) from error
