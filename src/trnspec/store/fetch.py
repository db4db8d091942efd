"""Copy weights from Hugging Face, or from a folder in S3, to S3: one file at a time, so that a small disk is enough, and the marker last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from httpx2 import HTTPError  # what huggingface_hub asks with
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from trnspec.store import MARKER, bucket

SAFE = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*")
"""The files that a server reads, and the licence. Weights in other formats are copies of these."""
PICKLED = ("*.bin", "*.pt", "*.pth")
"""Weights in other formats. They are copied only from a repository without safetensors."""
_ASIDE = ("checkpoint-*/*", "original/*", "onnx/*", "openvino/*", "*.onnx_data*")


@dataclass(frozen=True)
class Commit:
    """A model at a commit (forty hexadecimal digits; for a folder in S3, a hash of its content)."""

    model: str
    revision: str
    files: tuple[bucket.StoredFile, ...]


class Hub:
    """Hugging Face, or another hub, with a token or without one."""

    def __init__(self, *, endpoint: str | None = None, token: str | None = None) -> None:
        self._endpoint = endpoint
        self._token: str | bool = token or False
        self._api = HfApi(endpoint=endpoint, token=self._token)

    def commit(self, model: str, revision: str | None) -> Commit:
        """The commit of a revision (default: the newest), with the files that a server needs."""
        with self._one_line(model, revision):
            info = self._api.model_info(model, revision=revision, files_metadata=True)
        if not info.sha:
            raise bucket.Unreachable(
                f"{model}: the hub names no commit for {revision or 'the newest revision'}; give one with --revision"
            )
        files = [
            bucket.StoredFile(entry.rfilename, entry.size or 0, entry.lfs.sha256 if entry.lfs else "")
            for entry in info.siblings or []
        ]
        chosen = tuple(wanted(files))
        for file in chosen:
            bucket.inside(Path("/"), file.path, model)
        return Commit(model, info.sha, chosen)

    def download(self, commit: Commit, file: bucket.StoredFile, folder: Path) -> Path:
        """Download one file to `folder`. An interrupted download continues where it stopped."""
        with self._one_line(commit.model, commit.revision):
            return Path(
                hf_hub_download(
                    commit.model,
                    file.path,
                    revision=commit.revision,
                    local_dir=folder,
                    endpoint=self._endpoint,
                    token=self._token,
                )
            )

    @contextmanager
    def _one_line(self, model: str, revision: str | None) -> Iterator[None]:
        try:
            yield
        except GatedRepoError:
            remedy = (
                "its token has no access: accept the terms on the model's page with that account"
                if self._token
                else "accept its terms on the model's page and name a Secret with a token as token_secret"
            )
            raise bucket.StoreError(f"{model}: is gated; {remedy}") from None
        except RevisionNotFoundError:
            raise bucket.StoreError(
                f"{model}: has no revision {revision}; give a commit of the model"
            ) from None
        except (RepositoryNotFoundError, HFValidationError):
            raise bucket.StoreError(
                f"{model}: does not exist, or is private; correct its name, or give a token"
            ) from None
        except (HfHubHTTPError, LocalEntryNotFoundError, HTTPError, OSError) as error:
            raise bucket.Unreachable(
                f"{model}: {bucket.one_line(error)}; repeat the command to continue"
            ) from error


class Folder:
    """A folder in S3 as a source of weights."""

    def __init__(self, folder: bucket.BucketFolder) -> None:
        self._folder = folder

    def commit(self, model: str, revision: str | None) -> Commit:
        """The files that the folder has now. S3 has no commits, so `revision` is ignored, and a hash of sizes and ETags is the commit."""
        content = sorted(self._folder.content().items())
        files = wanted([bucket.StoredFile(name, size, "") for name, (size, _) in content])
        if not files:
            raise bucket.StoreError(
                f"{self._folder.address}: has no files that a server reads; correct the name of the folder"
            )
        for file in files:
            bucket.inside(Path("/"), file.path, self._folder.address)
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return Commit(model, f"etags-{digest}", tuple(files))

    def download(self, commit: Commit, file: bucket.StoredFile, folder: Path) -> Path:
        """Download one file to `folder`. Raises Incomplete if the folder in S3 has changed since."""
        self._folder.download(file.path, folder / file.path)
        if self.commit(commit.model, None) != commit:
            raise bucket.Incomplete(
                f"{self._folder.address}: changed while it was read; repeat the command when nothing writes to it"
            )
        return folder / file.path


def wanted(files: list[bucket.StoredFile]) -> list[bucket.StoredFile]:
    """The files that a server reads, in the order of their names."""
    kept = sorted(file for file in files if not _matches(file.path, _ASIDE))
    safe = any(_matches(file.path, ("*.safetensors",)) for file in kept)
    return [file for file in kept if _matches(file.path, SAFE if safe else SAFE + PICKLED)]


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


REVISION = "REVISION"
"""The file with the commit. It is written first, so that a repeated command does not mix two commits."""


def fetch(
    model: str,
    revision: str | None,
    *,
    hub: Hub | Folder,
    target: bucket.BucketFolder,
    scratch: Path,
    expected: Mapping[str, Any] | None = None,
) -> str:
    """Copy the model to `target`, write the marker, and return the commit.

    Raises Incomplete if `target` has another commit. Raises StoreError, before anything is stored, if the `config.json` of the model has
    other values than `expected`.
    """
    marker = target.text(MARKER)
    if marker is not None:
        return _completed(marker, model, revision, target.address)
    begun = (target.text(REVISION) or "").strip()
    commit = hub.commit(model, revision or begun or None)
    if begun and begun != commit.revision:
        raise bucket.Incomplete(
            f"{target.address}: has files of commit {begun}, not {commit.revision}; use another folder"
        )
    if not commit.files:
        raise bucket.StoreError(
            f"{model}: has no files that a server reads at {commit.revision}; correct its name"
        )
    if expected:
        _judge(commit, hub, scratch, expected)
    target.put_text(REVISION, commit.revision + "\n")
    # An object appears when it is complete, and only files of this commit, with the hub's hash, were stored here.
    there = target.sizes() if begun else {}
    stored = []
    for file in commit.files:
        if file.sha256 and there.get(file.path) == file.size:
            bucket.report(f"{file.path}: already there")
            stored.append(file)
        else:
            stored.append(_copy(commit, file, hub, target, scratch))
    content = {"model": model, "revision": commit.revision, "files": bucket.to_json(stored)}
    target.put_text(MARKER, json.dumps(content, sort_keys=True) + "\n")
    return commit.revision


def _judge(commit: Commit, hub: Hub | Folder, scratch: Path, expected: Mapping[str, Any]) -> None:
    """Hold the model's `config.json` against what the experiment declares."""
    file = next((file for file in commit.files if file.path == "config.json"), None)
    if file is None:
        raise bucket.StoreError(
            f"{commit.model}: has no config.json, so its shape cannot be checked; use a model with one"
        )
    local = hub.download(commit, file, scratch)
    try:
        written = dict(json.loads(local.read_bytes()))
    except (ValueError, TypeError, RecursionError):
        written = {}
    finally:
        local.unlink()
    unwritten = {"head_dim": expected.get("head_dim"), "tie_word_embeddings": False}
    found = {"num_key_value_heads": written.get("num_attention_heads"), **unwritten, **written}
    if other := [
        f"{key} {found.get(key)}, not {expected[key]}" for key in expected if found.get(key) != expected[key]
    ]:
        raise bucket.StoreError(
            f"{commit.model}: its config.json has {bucket.one_line(ValueError('; '.join(other)))}; correct `like` or `config`, or the "
            "model's name"
        )


def _copy(
    commit: Commit, file: bucket.StoredFile, hub: Hub | Folder, target: bucket.BucketFolder, scratch: Path
) -> bucket.StoredFile:
    """Copy one file by way of the disk, and return it with its hash, which must be the hub's where that has one."""
    local = hub.download(commit, file, scratch)
    try:
        stored = bucket.described(scratch, local)
        if stored.size != file.size or (file.sha256 and stored.sha256 != file.sha256):
            raise bucket.Incomplete(
                f"{commit.model}/{file.path}: arrived damaged (other size or hash); repeat the command"
            )
        target.upload(local, stored.path)
        bucket.report(f"{file.path}: {stored.size / 1e6:,.1f} MB stored")
        return stored
    finally:
        local.unlink(missing_ok=True)


def _completed(marker: str, model: str, revision: str | None, where: str) -> str:
    """The commit of a finished folder, if it is what was asked for."""
    bucket.from_json(marker, f"{where}/{MARKER}")
    content = json.loads(marker)
    if content.get("model") != model or (revision and content.get("revision") != revision):
        raise bucket.Incomplete(
            f"{where}: has {content.get('model')} at {content.get('revision')}, not {model} at "
            f"{revision or 'any commit'}; use another folder"
        )
    return str(content["revision"])
