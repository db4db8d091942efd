"""Rendered objects as the files that are reviewed, the way back, and the values that only a deployment knows.

A deployment reads the files, so exactly the reviewed objects are deployed; a fingerprint in the folder shows whether they were
rendered from the current experiment. Values of a deployment are a fixed list of placeholders in them. Reading
does not need jsii.

Objects are plain data, with cdk8s where it helps. cdk8s-plus-27 writes pods well but knows Kubernetes 1.27: a JSON patch on one of
its objects silently loses fields of later versions (resource claims among them). So a pod is authored with it in a scratch
chart, taken out as plain data, completed there, and placed into the real chart as a raw object, which nothing filters.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trnspec.core.findings import Misuse
from trnspec.experiment.arms import digest
from trnspec.experiment.naming import namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import cdk8s

    from trnspec.experiment.arms import Experiment


PLACEHOLDERS = {
    "AWS_ACCOUNT": "id of the account, part of bucket names",
    "BENCHMARK_IMAGE": "image of benchmark and store, tagged with the hash of its content",
    "LMEVAL_IMAGE": "image of the quality check, tagged alike; only where an experiment has one",
}

_PATTERN = re.compile(r"\$\{([A-Z_]+)\}")


def fill(objects: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects with every `${NAME}` replaced.

    Raises `Misuse` for a value that is missing, that matches no placeholder, or that cannot be filled in.
    """
    for name in sorted(values.keys() - PLACEHOLDERS.keys()):
        raise Misuse(f"{name} is not a placeholder; give {', '.join(sorted(PLACEHOLDERS))}")
    return [
        # Immutable data is that of files, of the user's prompts too, in which `${HOME}` means itself.
        {
            key: inner if item.get("immutable") and key == "data" else filled(inner, values)
            for key, inner in item.items()
        }
        for item in objects
    ]


def names_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(_PATTERN.findall(value))
    if isinstance(value, dict):
        return set().union(*(names_in(inner) for inner in value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*(names_in(inner) for inner in value))
    return set()


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a part of an object with every `${NAME}` replaced. Raises `Misuse` for a missing value."""
    if isinstance(value, str):
        return _PATTERN.sub(lambda match: _value(match[1], values), value)
    if isinstance(value, dict):
        return {key: filled(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, values) for inner in value]
    return value


def _value(name: str, values: Mapping[str, str]) -> str:
    if name in values:
        return values[name]
    if name in PLACEHOLDERS:
        raise Misuse(f"placeholder {name} has no value; it is the {PLACEHOLDERS[name]}")
    raise Misuse(f"${{{name}}} is in a rendered object and is not a placeholder; write it another way")


FINGERPRINT = "rendered.sha256"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FastDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The C loader: twenty times as fast, and in every wheel of PyYAML."""
_HEADER = "# Rendered by `./trnspec render`; edit the experiment, never this file.\n"


@dataclass(frozen=True)
class ManifestFile:
    """One chart as a file, with placeholders such as `${NAME}`."""

    name: str
    objects: tuple[dict[str, Any], ...]

    def yaml(self) -> str:
        return _HEADER + yaml.dump_all(
            self.objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, explicit_start=True
        )


def folder_of(experiment: Experiment, parent: Path) -> Path:
    """Return the folder of an experiment's files: `parent/NAME`, or `parent/NAME/REGION` for another region than that folder's."""
    own = parent / experiment.name / experiment.cluster.region
    return own if own.is_dir() else own.parent


def region_in(folder: Path) -> str | None:
    """Return the region that a folder was rendered for; empty if it is not recorded."""
    try:
        recorded = (folder / FINGERPRINT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return dict(line.split(" ", 1) for line in recorded.splitlines() if " " in line).get("region")


def read(experiment: Experiment, parent: Path, *, fresh: bool = True) -> tuple[ManifestFile, ...]:
    """Read the committed files of an experiment in `parent`, in apply order; without `fresh` also those of an earlier version of the
    charts.

    Raises `Misuse` when they are missing, were rendered from something else, or were changed by hand.
    """
    folder = folder_of(experiment, parent)
    remedy = f"run ./trnspec render {experiment.file} and review what changes"
    try:
        recorded = (folder / FINGERPRINT).read_text(encoding="utf-8")
        contents = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    except (OSError, UnicodeDecodeError):
        raise Misuse(f"{folder}: experiment {experiment.name} is not rendered there; {remedy}") from None
    if fresh and recorded != _fingerprint(experiment, contents):
        raise Misuse(f"{folder}: rendered from another state of {experiment.name}, or edited since; {remedy}")
    return tuple(
        ManifestFile(name, tuple(yaml.load_all(text, Loader=_Loader))) for name, text in contents.items()
    )


def texts(
    experiment: Experiment, files: tuple[ManifestFile, ...], parent: Path, *, folder: Path | None = None
) -> dict[Path, str]:
    """Return the expected contents of the experiment's folder in `parent`, or of another `folder`."""
    folder = folder or folder_of(experiment, parent)
    contents = {file.name: file.yaml() for file in files}
    return {
        folder / FINGERPRINT: _fingerprint(experiment, contents),
        **{folder / name: text for name, text in contents.items()},
    }


def _fingerprint(experiment: Experiment, contents: dict[str, str]) -> str:
    """Return the digests of the experiment and of its files, and the region, one line each."""
    files = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    return f"experiment {digest(experiment)}\nregion {experiment.cluster.region}\nmanifests {files}\n"


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Return the paths that writing `wanted` would change, create or delete."""
    folder = next(iter(wanted)).parent
    left = [path for path in sorted(folder.glob("*.yaml")) if path not in wanted]
    return left + [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def write(wanted: dict[Path, str]) -> list[Path]:
    """Write the files, delete those of an earlier rendering, and return the changed paths."""
    changed = stale(wanted)
    replace({path: wanted.get(path) for path in changed}, next(iter(wanted)).parent)
    return changed


def replace(changes: Mapping[Path, str | None], folder: Path) -> None:
    """Replace files of a folder. All texts are first written to a temporary folder, so that a full disk changes nothing. The
    fingerprint comes after the others, and files without a text are deleted at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rendering-", dir=folder) as temporary:
        for path, text in changes.items():
            if text is not None:
                Path(temporary, path.name).write_text(text, encoding="utf-8")
        for path in sorted(changes, key=lambda path: (changes[path] is None, path.name == FINGERPRINT)):
            path.unlink() if changes[path] is None else Path(temporary, path.name).replace(path)


class _Dumper(_FastDumper):  # pyrefly: ignore[unknown-base-class]  # C code has no types
    """YAML for reviewers: long texts as blocks, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def kubernetes_object(
    api_version: str,
    kind: str,
    name: str,
    *,
    within: Experiment | None = None,
    labels: dict[str, str] | None = None,
    **content: Any,
) -> dict[str, Any]:
    """Return an object in the namespace of an experiment, or of the whole cluster."""
    metadata: dict[str, Any] = {"name": name}
    if within is not None:
        metadata["namespace"] = namespace(within)
    if labels is not None:
        metadata["labels"] = labels
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def config_map(
    experiment: Experiment, name: str, data: dict[str, str], labels: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a ConfigMap with files for pods. It is immutable, so its name must contain a hash of its content."""
    return kubernetes_object(
        "v1", "ConfigMap", name, within=experiment, labels=labels, immutable=True, data=data
    )


def authored(build: Callable[[cdk8s.Chart], object]) -> dict[str, Any]:
    """Return the one object that `build` puts into a scratch chart, as plain data."""
    import cdk8s  # here, because it starts jsii

    chart = cdk8s.Chart(cdk8s.App(), "scratch", disable_resource_name_hashes=True)
    build(chart)
    (manifest,) = chart.to_json()
    return dict(manifest)


def content_suffix(content: Any) -> str:
    """Return eight hex digits of the content's hash, for the names of immutable objects."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
