"""Hugging Face as far as fetching weights needs it: a commit, its files, one file at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from store.errors import StoreError, Unreachable, one_line
from store.files import inside

SAFE = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*")
"""What a server reads, and under which terms. Weights of other formats are second copies where these exist."""
PICKLED = ("*.bin", "*.pt", "*.pth")
"""Taken only from a repository without safetensors (heads of Medusa, for one)."""
_ASIDE = ("original/*", "onnx/*", "openvino/*", "*.onnx_data*")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a commit."""

    path: str
    size: int
    sha256: str | None
    """Known for files in large-file storage, which all weights are."""


@dataclass(frozen=True)
class Commit:
    """A model at a commit, forty hexadecimal digits."""

    model: str
    revision: str
    files: tuple[RemoteFile, ...]


class Hub:
    """A hub, with the token of its user or without one."""

    def __init__(self, *, endpoint: str | None = None, token: str | None = None) -> None:
        self._endpoint = endpoint
        self._token: str | bool = token or False
        self._api = HfApi(endpoint=endpoint, token=self._token)

    def commit(self, model: str, revision: str | None) -> Commit:
        """Resolve a revision (default: the newest) to its commit and list what a server needs of it."""
        with self._one_line(model, revision):
            info = self._api.model_info(model, revision=revision, files_metadata=True)
        if not info.sha:
            raise Unreachable(f"{model}: the hub names no commit for {revision or 'the newest revision'}")
        files = [
            RemoteFile(entry.rfilename, entry.size or 0, entry.lfs.sha256 if entry.lfs else None)
            for entry in info.siblings or []
        ]
        chosen = tuple(wanted(files))
        for file in chosen:
            inside(Path("/"), file.path, model)
        return Commit(model, info.sha, chosen)

    def download(self, commit: Commit, file: RemoteFile, folder: Path) -> Path:
        """One file into `folder`; an interrupted download goes on where it stopped."""
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
                else "accept its terms on the model's page and name a Secret with a token as weights.token_secret"
            )
            raise StoreError(f"{model}: is gated; {remedy}") from None
        except RevisionNotFoundError:
            raise StoreError(f"{model}: has no revision {revision}; give a commit of the model") from None
        except (RepositoryNotFoundError, HFValidationError):
            raise StoreError(f"{model}: no such model, or one that only a token may see") from None
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise Unreachable(f"{model}: {one_line(error)}; repeat to go on from here") from error


def wanted(files: list[RemoteFile]) -> list[RemoteFile]:
    """The files that a server reads, in the order of their names."""
    safe = any(_matches(file.path, ("*.safetensors",)) for file in files)
    patterns = SAFE if safe else SAFE + PICKLED
    return sorted((file for file in files if _matches(file.path, patterns)), key=lambda file: file.path)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    aside = any(fnmatchcase(path, pattern) for pattern in _ASIDE)
    return not aside and any(fnmatchcase(path, pattern) for pattern in patterns)
