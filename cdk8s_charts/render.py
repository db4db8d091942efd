"""All charts of an experiment, in the order in which they are applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cdk8s
import yaml

from cdk8s_charts.errors import ChartError
from cdk8s_charts.foundation import claims_chart, namespace_chart, storage_chart
from cdk8s_charts.llmperf import llmperf_chart
from cdk8s_charts.parity import undeclared_differences
from cdk8s_charts.serving import serving_chart

if TYPE_CHECKING:
    from pathlib import Path

    from experiment.arms import Experiment

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


def render(experiment: Experiment) -> tuple[ManifestFile, ...]:
    """Files in apply order.

    Raises `ChartError` when two arms differ in more than their declared treatment.
    """
    app = cdk8s.App()
    charts = [
        ("00", namespace_chart(app, experiment)),
        ("10", claims_chart(app, experiment)),
        ("20", storage_chart(app, experiment)),
        *(("30", serving_chart(app, experiment, arm)) for arm in experiment.arms),
        ("40", llmperf_chart(app, experiment)),
    ]
    files = tuple(
        ManifestFile(f"{order}-{chart.node.id}.yaml", tuple(dict(entry) for entry in chart.to_json()))
        for order, chart in charts
    )
    _refuse_unfair(experiment, files)
    return files


def stale(files: tuple[ManifestFile, ...], folder: Path) -> list[Path]:
    """Paths under `folder` that writing the files would change or remove."""
    texts = {folder / file.name: file.yaml() for file in files}
    left = [path for path in sorted(folder.glob("*.yaml")) if path not in texts]
    return left + [
        path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def write(files: tuple[ManifestFile, ...], folder: Path) -> list[Path]:
    """Write the files and remove what an earlier rendering left; returns what changed."""
    changed = stale(files, folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / file.name: file.yaml() for file in files}
    for path in changed:
        if path in texts:
            path.write_text(texts[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


def _refuse_unfair(experiment: Experiment, files: tuple[ManifestFile, ...]) -> None:
    deployments = {
        item["metadata"]["name"]: item
        for file in files
        for item in file.objects
        if item["kind"] == "Deployment"
    }
    baseline = deployments[experiment.baseline.name]
    for arm in experiment.arms[1:]:
        extra = undeclared_differences(baseline, deployments[arm.name])
        if extra:
            raise ChartError(
                f"arm {arm.name} differs from {experiment.baseline.name} beyond its treatment: "
                f"{'; '.join(extra)}"
            )


class _Dumper(yaml.SafeDumper):
    """Lists indented, long texts as blocks, no aliases: what a reviewer reads best."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
