"""Copy a compiled artifact to S3, and compare it with that of the baseline. Copy a complete folder from S3, or from a mount of it, to a disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trnspec.core.differences import ABSENT, differences
from trnspec.core.files import json_of, write_whole
from trnspec.store import FILES, MARKER, bucket

INPUTS = "artifact_inputs.json"
"""The readable inputs of the hash that is the artifact key."""
CONFIGURATION = "neuron_config.json"
"""The configuration that the compiler saved, with the defaults that the engine filled in."""
DIFFERENCES = "neuron_config_differences.json"


def marker_of(key: str) -> str:
    """Return the one line of the marker. A shell script in the serving pods compares it as text."""
    return json.dumps({"key": key}) + "\n"


def push(
    folder: Path,
    target: bucket.BucketFolder,
    *,
    key: str,
    inputs: str,
    required: Collection[str],
    baseline: bucket.BucketFolder | None,
    declared: Collection[str],
) -> None:
    """Copy an artifact. Raises Incomplete if `folder` is not a complete artifact, or if `target` belongs to another arm. `required` has names of
    files, or patterns of which one file must exist."""
    if (found := target.text(MARKER)) is not None:
        if found != marker_of(key):
            raise bucket.Incomplete(
                f"{target.address}/{MARKER}: is of another arm ({found.strip()}, not key {key}); delete it, or use another folder"
            )
        bucket.report(f"artifact {key}: already complete")
        return
    for name in required:
        if not any(path.is_file() and path.stat().st_size for path in folder.glob(name)):
            raise bucket.Incomplete(
                f"{folder / name}: is missing or empty, so compilation did not finish; compile again"
            )
    if (compared := _comparison(folder, baseline, declared)) is not None:
        # Not part of the artifact, so not in its list: a later attempt may write it again.
        target.put_text(DIFFERENCES, compared)
    files = [bucket.described(folder, path) for path in _files(folder)]
    for file in files:
        target.upload(folder / file.path, file.path)
        bucket.report(f"{file.path}: {file.size / 1e6:,.1f} MB stored")
    target.put_text(INPUTS, inputs)
    content = inputs.encode()
    files.append(bucket.StoredFile(INPUTS, len(content), hashlib.sha256(content).hexdigest()))
    target.put_text(FILES, json.dumps({"files": bucket.to_json(files)}, indent=1) + "\n")
    target.put_text(MARKER, marker_of(key))


def comparison(
    address: str, theirs: Mapping[str, Any] | None, ours: Mapping[str, Any], declared: Collection[str]
) -> str:
    """The text of the file `DIFFERENCES`: the differences from the configuration of the baseline, whose folder is `address`.

    Equal settings do not make equal engines, because the runtime fills in defaults. Keys in `declared` differ on purpose. `theirs` is
    None if the baseline is not compiled yet; then nothing is compared.
    """
    content: dict[str, Any] = {"baseline": address, "compared": theirs is not None}
    if theirs is not None:
        content["differences"] = [
            {
                "path": one.path,
                "baseline": None if one.old is ABSENT else one.old,
                "this": None if one.new is ABSENT else one.new,
                "declared": not set(one.path.split(".")).isdisjoint(declared),
            }
            for one in differences(theirs, ours, read=_whole)
        ]
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _whole(_path: str, value: Any) -> Any:
    """Return lists as one value."""
    return tuple(value) if isinstance(value, list) else value


def _comparison(folder: Path, baseline: bucket.BucketFolder | None, declared: Collection[str]) -> str | None:
    """`None` for the baseline itself, and for a runtime whose compiler saves no configuration."""
    if baseline is None or not (folder / CONFIGURATION).is_file():
        return None
    theirs = baseline.text(CONFIGURATION)
    try:
        ours = json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
        return comparison(baseline.address, None if theirs is None else json.loads(theirs), ours, declared)
    except ValueError as error:
        raise bucket.Incomplete(
            f"{folder / CONFIGURATION} or the baseline's: is not JSON ({error}); compile again"
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
    raise bucket.Incomplete(
        f"{error.filename}: {bucket.one_line(error)}; without it the artifact is incomplete; give the group read access"
    ) from error


_AT_ONCE = 8
"""Files in flight: one stream of Mountpoint or S3 does not fill the network of a Trn2 node."""


class MountedFolder:
    """A folder of a file system, with the methods of a folder in S3."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.address = folder, str(folder)

    def text(self, name: str) -> str | None:
        path = self._folder / name
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise bucket.Unreachable(f"{path}: {bucket.one_line(error)}; repeat the command") from error

    def sizes(self) -> dict[str, int]:
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return {path.relative_to(self._folder).as_posix(): path.stat().st_size for path in files}

    def download(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(self._folder / name, target)
        except OSError as error:
            raise bucket.Unreachable(
                f"{self._folder / name}: {bucket.one_line(error)}; repeat the command"
            ) from error


ArtifactFolder = bucket.BucketFolder | MountedFolder


def source(address: str, *, region: str | None) -> ArtifactFolder:
    """The folder at an address in S3 or at a path."""
    if address.startswith("s3://"):
        return bucket.BucketFolder(address, region=region)
    return MountedFolder(Path(address))


def check(folder: ArtifactFolder, *, key: str | None) -> list[bucket.StoredFile]:
    """The files of a complete folder.

    Raises Incomplete if it has no marker, the marker of another arm, or a file that is missing or has another size.
    """
    marker = folder.text(MARKER)
    if marker is None:
        raise bucket.Incomplete(
            f"{folder.address}: has no file {MARKER}, so it is not complete; fetch or compile it first"
        )
    if key is not None and marker != marker_of(key):
        raise bucket.Incomplete(
            f"{folder.address}: is of another arm ({marker.strip() or 'an empty marker'}, not key {key}); compile this arm"
        )
    listed = marker if _lists_files(marker) else folder.text(FILES)
    if listed is None:
        raise bucket.Incomplete(f"{folder.address}: has no list of its files, {FILES}; compile again")
    files = bucket.from_json(listed, folder.address)
    sizes = folder.sizes()
    for file in files:
        if sizes.get(file.path) != file.size:
            found = f"has {sizes[file.path]} bytes, not {file.size}" if file.path in sizes else "is missing"
            remedy = f"delete {MARKER}, then fetch or compile again"
            raise bucket.Incomplete(f"{folder.address}/{file.path}: {found}; {remedy}")
    return files


def pull(folder: ArtifactFolder, target: Path, *, key: str | None) -> None:
    """Copy a complete folder to `target`, the marker last. Files that are already complete are not copied again."""
    files = check(folder, key=key)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line in pool.map(lambda file: _copy(folder, file, target), files):
            bucket.report(line)
    for name in (FILES, MARKER):
        if (text := folder.text(name)) is not None:
            write_whole(target / name, text)


def _copy(folder: ArtifactFolder, file: bucket.StoredFile, target: Path) -> str:
    final = bucket.inside(target, file.path, folder.address)
    if final.is_file() and final.stat().st_size == file.size:
        return f"{file.path}: already there"
    # A name of its own until it is whole, so that a size alone tells a whole copy.
    unfinished = target / f".{hashlib.sha256(file.path.encode()).hexdigest()[:16]}.part"
    folder.download(file.path, unfinished)
    if unfinished.stat().st_size != file.size or bucket.sha256(unfinished) != file.sha256:
        unfinished.unlink()
        raise bucket.Incomplete(
            f"{folder.address}/{file.path}: has another hash than the stored file; repeat the command, or compile again"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(unfinished, final)
    return f"{file.path}: {file.size / 1e6:,.1f} MB copied"


def _lists_files(marker: str) -> bool:
    """Whether it is a model's, which has the list in itself."""
    try:
        content = json_of(marker)
    except ValueError:
        return False
    return isinstance(content, dict) and "files" in content
