"""Rendered objects as the files that are reviewed, the way back, and the values that only a deployment knows.

A deployment reads the files, so it deploys exactly the reviewed objects. A fingerprint in the folder shows whether they were
rendered from the current experiment. Values that only a deployment knows are a fixed list of placeholders. Reading does not
need jsii.

cdk8s-plus-27 writes what Kubernetes 1.27 knew. A JSON patch on one of its objects silently loses newer fields, such as resource
claims. So such an object is written in a scratch chart, taken out as plain data, completed there, and placed as a raw object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trnspec.core.findings import Misuse
from trnspec.experiment.arms import Experiment, digest
from trnspec.experiment.naming import namespace

if TYPE_CHECKING:
    import cdk8s

PLACEHOLDERS = {
    "AWS_ACCOUNT": "id of the account, part of bucket names",
    "BENCHMARK_IMAGE": "image of benchmark and store, tagged with the hash of its content",
    "LMEVAL_IMAGE": "image of the quality check, tagged in the same way; only if the experiment has benchmark.lm_eval",
}

_PATTERN = re.compile(r"\$\{([A-Z_]+)\}")


def fill(objects: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects with every `${NAME}` replaced, except in the data of immutable objects: they are files, and `${HOME}` in
    a user's prompt means itself.

    Raises `Misuse` for a `${NAME}` without a value.
    """
    return [
        {
            key: inner if item.get("immutable") and key == "data" else _filled(inner, values)
            for key, inner in item.items()
        }
        for item in objects
    ]


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PATTERN.sub(lambda match: _value(match[1], values), value)
    if isinstance(value, dict):
        return {key: _filled(inner, values) for key, inner in value.items()}
    return [_filled(inner, values) for inner in value] if isinstance(value, list) else value


def _value(name: str, values: Mapping[str, str]) -> str:
    if name in values:
        return values[name]
    if name in PLACEHOLDERS:
        raise Misuse(f"placeholder {name} has no value; it is the {PLACEHOLDERS[name]}")
    raise Misuse(f"${{{name}}} is in a rendered object and is not a placeholder; write it another way")


def names_in(value: Any) -> set[str]:
    """Return the names of all `${NAME}` in a value."""
    if isinstance(value, str):
        return set(_PATTERN.findall(value))
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return set()
    return set().union(*map(names_in, value))


FINGERPRINT = "rendered.sha256"
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


def read(experiment: Experiment, parent: Path, *, fresh: bool = True) -> tuple[ManifestFile, ...]:
    """Read the committed files of an experiment in `parent`, in apply order; without `fresh` also those of an earlier version of the
    charts.

    Raises `Misuse` when they are missing, were rendered from something else, or were changed by hand.
    """
    folder = parent / experiment.name
    remedy = f"run ./trnspec render {experiment.file} and review what changes"
    try:
        recorded = (folder / FINGERPRINT).read_text(encoding="utf-8")
        contents = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    except (OSError, UnicodeDecodeError):
        raise Misuse(f"{folder}: experiment {experiment.name} is not rendered there; {remedy}") from None
    if fresh and recorded != _fingerprint(experiment, contents):
        raise Misuse(f"{folder}: rendered from another state of {experiment.name}, or edited since; {remedy}")
    return tuple(
        ManifestFile(name, tuple(yaml.load_all(text, Loader=yaml.CSafeLoader)))
        for name, text in contents.items()
    )


def texts(experiment: Experiment, files: tuple[ManifestFile, ...], parent: Path) -> dict[Path, str]:
    """Return the expected contents of the experiment's folder in `parent`."""
    folder, contents = parent / experiment.name, {file.name: file.yaml() for file in files}
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
    """Write the files, delete those of an earlier rendering, and return the changed paths. An interrupted call leaves files that do
    not match the fingerprint, which `read` refuses."""
    changed = stale(wanted)
    next(iter(wanted)).parent.mkdir(parents=True, exist_ok=True)
    for path in changed:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


class _Dumper(yaml.CSafeDumper):
    """YAML for reviewers: long texts as blocks, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
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


def synthesize_one(build: Callable[[cdk8s.Chart], object]) -> dict[str, Any]:
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
