"""A compiled artifact into S3: checked, compared with the baseline's, marker last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from store import FILES, MARKER
from store.bucket import BucketFolder, Incomplete, described, of_text, one_line, to_json

INPUTS = "artifact_inputs.json"
"""What the artifact key is a hash of, for a person to read."""
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
    """Copy what was compiled; raises Incomplete when `folder` is not a whole artifact or `target` belongs to another arm."""
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
    if (compared := _comparison(folder, baseline, declared)) is not None:
        # Not part of the artifact, so not in its list: a later attempt may write it again.
        target.put_text(DIFFERENCES, compared)
    files = [described(folder, path) for path in _files(folder)]
    for file in files:
        if not target.has(file):
            target.upload(folder / file.path, file)
            report(f"{file.path}: {file.size / 1e6:,.1f} MB stored")
    target.put_text(INPUTS, inputs)
    files.append(of_text(INPUTS, inputs))
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


def comparison(
    address: str, theirs: Mapping[str, Any] | None, ours: Mapping[str, Any], declared: Collection[str]
) -> str:
    """What is stored as `DIFFERENCES`: what the compiler set differently from the baseline, whose folder is `address`.

    Equal requests are not yet an equal engine: the runtime fills defaults in by itself. A key of `declared` differs because
    the arm is treated. `theirs` is `None` for a baseline that was not compiled yet; then nothing is compared.
    """
    content: dict[str, Any] = {"baseline": address, "compared": theirs is not None}
    if theirs is not None:
        content["differences"] = [
            {
                "path": path,
                "baseline": pair[0],
                "this": pair[1],
                "declared": not set(path.split(".")).isdisjoint(declared),
            }
            for path, pair in differences(theirs, ours).items()
        ]
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _comparison(folder: Path, baseline: BucketFolder | None, declared: Collection[str]) -> str | None:
    """`None` for the baseline itself, and for a runtime whose compiler saves no configuration."""
    if baseline is None or not (folder / CONFIGURATION).is_file():
        return None
    theirs = baseline.text(CONFIGURATION)
    try:
        ours = json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
        return comparison(baseline.address, None if theirs is None else json.loads(theirs), ours, declared)
    except ValueError as error:
        raise Incomplete(
            f"{folder / CONFIGURATION} or the baseline's: no JSON ({error}); compile again"
        ) from None


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
