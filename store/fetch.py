"""Weights from Hugging Face into S3: file by file, so that a small disk is enough, the marker last."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from store import MARKER
from store.bucket import BucketFolder
from store.errors import Incomplete, StoreError
from store.files import StoredFile, described, from_json, to_json
from store.hub import Commit, Hub, RemoteFile

REVISION = "REVISION"
"""The commit that a folder is being filled from, written first: a repetition must not mix two commits."""


def fetch(
    model: str,
    revision: str | None,
    *,
    hub: Hub,
    target: BucketFolder,
    scratch: Path,
    report: Callable[[str], None],
) -> str:
    """Fill `target` with the model and mark it complete; returns the commit.

    Raises Incomplete for a folder that holds another commit than the one that is asked for.
    """
    marker = target.text(MARKER)
    if marker is not None:
        return _completed(marker, model, revision, target.address)
    begun = (target.text(REVISION) or "").strip()
    commit = hub.commit(model, revision or begun or None)
    if begun and begun != commit.revision:
        raise Incomplete(
            f"{target.address}: begun with commit {begun}, asked for {commit.revision}; use another folder"
        )
    if not commit.files:
        raise StoreError(f"{model}: holds no weights at {commit.revision}; check the name")
    target.put_text(REVISION, commit.revision + "\n")
    stored = [_one(commit, file, hub, target, scratch, report) for file in commit.files]
    content = {"model": model, "revision": commit.revision, "files": to_json(stored)}
    target.put_text(MARKER, json.dumps(content, sort_keys=True) + "\n")
    return commit.revision


def _one(
    commit: Commit,
    file: RemoteFile,
    hub: Hub,
    target: BucketFolder,
    scratch: Path,
    report: Callable[[str], None],
) -> StoredFile:
    if file.sha256 is not None:
        known = StoredFile(file.path, file.size, file.sha256)
        if target.has(known):
            report(f"{file.path}: there already")
            return known
    local = hub.download(commit, file, scratch)
    try:
        stored = described(scratch, local)
        if stored.size != file.size or (file.sha256 and stored.sha256 != file.sha256):
            raise Incomplete(f"{commit.model}/{file.path}: arrived damaged (size or hash differs); repeat")
        if target.has(stored):
            report(f"{file.path}: there already")
        else:
            target.upload(local, stored)
            report(f"{file.path}: {stored.size / 1e6:,.1f} MB stored")
    finally:
        local.unlink(missing_ok=True)
    return stored


def _completed(marker: str, model: str, revision: str | None, where: str) -> str:
    """The commit of a finished folder, if it is what was asked for."""
    from_json(marker, f"{where}/{MARKER}")
    content = json.loads(marker)
    if content.get("model") != model or (revision and content.get("revision") != revision):
        raise Incomplete(
            f"{where}: holds {content.get('model')} at {content.get('revision')}, asked for {model} at "
            f"{revision or 'any commit'}; use another folder"
        )
    return str(content["revision"])
