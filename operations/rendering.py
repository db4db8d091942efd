"""`render`: the Kubernetes objects that reviewers read, or the same with their placeholders filled."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import yaml

from cdk8s_charts.__main__ import files_of_checkout, rendered, said
from cdk8s_charts.gitops import folder
from cdk8s_charts.manifests import PLACEHOLDERS, TAG, ManifestFile, fill, names_in, read, with_tags
from core.console import print_json
from core.findings import Misuse
from core.words import count
from experiment import Experiment
from operations.cloud import markers
from operations.cloud.aws import aws_of
from operations.options import FILE, experiment_of, manifests_option, on_aws
from operations.resolving import deployed_images, place_in_repository, write_folder

_GIVEN = {name for name in PLACEHOLDERS if not name.endswith(TAG)}
"""What somebody must know; what names of Jobs carry follows from it."""
_PINNED = re.compile(r"[^\s:@]+(:\d+)?(/[^\s:@]+)+(:(?!latest$)[\w.-]+|(:[\w.-]+)?@sha256:[0-9a-f]{64})")


def _assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE` of a placeholder."""
    name, equals, value = text.partition("=")
    if name not in _GIVEN or not equals or not value:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with one of {', '.join(sorted(_GIVEN))}")
    return name, value


@on_aws
@manifests_option
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file is not up to date.")
@click.option("--all", "everything", is_flag=True, help="All files of experiments/ instead of one.")
@click.option(
    "--resolved",
    is_flag=True,
    help="Print what was written with its placeholders filled, to apply by hand: ... | kubectl apply -f -",
)
@click.option(
    "--out",
    type=FILE,
    metavar="DIR",
    help="With --resolved: write it into DIR, a folder of your GitOps repository, filled from the deployed stacks.",
)
@click.option(
    "--prometheus",
    type=FILE,
    metavar="DIR",
    help="Write instead what a Prometheus and a Grafana of yours take: PodMonitors and alert rules (prometheus.yaml), the "
    "rules alone (rules.yaml), a dashboard (dashboard.json).",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    type=_assignment,
    metavar="NAME=VALUE",
    help="For --resolved. " + "; ".join(f"{name}: {PLACEHOLDERS[name]}" for name in sorted(_GIVEN)),
)
def command(
    path: Path,
    manifests: Path,
    check: bool,
    everything: bool,
    resolved: bool,
    out: Path | None,
    prometheus: Path | None,
    given: tuple[tuple[str, str], ...],
    account: str | None,
    as_json: bool,
) -> int:
    """Write the Kubernetes objects of an experiment to manifests/, where reviewers read them.

    With --resolved AWS is asked for the account only when neither --account nor --set names it. With --out the stacks must be
    deployed with `workloads: gitops`; DIR gets the objects, a kustomization and an Argo CD Application.
    """
    if out is not None and not resolved:
        raise Misuse("--out: is for --resolved; to write reviewed manifests elsewhere, give --manifests")
    if prometheus:
        if check or everything or resolved or out or given:
            raise Misuse(
                "--prometheus: writes files of its own; leave --check, --all, --resolved, --out and --set out"
            )
        return _for_prometheus(experiment_of(path, verb="render"), prometheus, as_json=as_json)
    if resolved:
        experiment = experiment_of(path, verb="render")
        return _resolved(
            experiment, read(experiment, manifests), out, dict(given), account=account, as_json=as_json
        )
    found = rendered(files_of_checkout() if everything else [path], out=manifests, check=check)
    if not as_json:
        return said(found, check=check)
    told = [{**vars(one), "folder": str(one.folder), "changed": [*map(str, one.changed)]} for one in found]
    print_json({"rendered": told})
    return int(check and any(one["changed"] for one in told))


def _resolved(
    experiment: Experiment,
    files: tuple[ManifestFile, ...],
    out: Path | None,
    values: dict[str, str],
    *,
    account: str | None,
    as_json: bool,
) -> int:
    """Fill the placeholders; into a folder from what is deployed, else from what was given."""
    aws = aws_of(experiment, account)
    needed = set().union(*(names_in(item) for file in files for item in file.objects)) & _GIVEN
    if out is not None:
        repository, place = place_in_repository(out)
        if images := needed - values.keys() - {"AWS_ACCOUNT"}:
            values |= deployed_images(experiment, aws, sorted(images))
        markers.refuse_uncompiled(experiment, aws)
    if "AWS_ACCOUNT" not in values:
        values["AWS_ACCOUNT"] = account or aws.account
    _refuse_incomplete(needed, values)
    values = with_tags(values)
    filled = [ManifestFile(file.name, tuple(fill(file.objects, values))) for file in files]
    if out is not None:
        texts = folder(experiment, filled, repository=repository, path=place)
        written = [str(path) for path in write_folder(experiment, texts, out)]
        told = {"folder": str(out), "files": len(texts), "changed": written}
        print_json(told) if as_json else print(f"{out}: {count(len(texts), 'file')}, {len(written)} changed")
    elif as_json:
        items = [item for file in filled for item in file.objects]
        print_json({"apiVersion": "v1", "kind": "List", "items": items})
    else:
        sys.stdout.write("".join(file.yaml() for file in filled))
    return 0


def _for_prometheus(experiment: Experiment, folder: Path, *, as_json: bool) -> int:
    from cdk8s_charts.render import render_for_prometheus  # jsii takes a second to start
    from infra.monitoring.alarms import alert_groups
    from infra.monitoring.grafana import grafana_dashboard

    if experiment.cluster.prometheus is None:
        raise Misuse(
            f"{experiment.name}: cluster.prometheus is not set, so its pods would let no Prometheus read them; write "
            "`prometheus: {namespace: monitoring}` under `cluster`, with the namespace of yours"
        )
    groups = alert_groups(experiment)
    written = {
        "prometheus.yaml": render_for_prometheus(experiment, groups).yaml(),
        "rules.yaml": yaml.safe_dump({"groups": groups}, sort_keys=False, width=1000),
        "dashboard.json": grafana_dashboard(experiment),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misuse(f"--prometheus {folder}: {error.strerror}; give a folder that can be written") from None
    if as_json:
        print_json({"written": [str(folder / name) for name in written]})
    else:
        print(f"{folder}: {', '.join(written)}")
    return 0


def _refuse_incomplete(needed: set[str], values: dict[str, str]) -> None:
    for name in sorted(needed - values.keys()):
        raise Misuse(f"{name}: has no value ({PLACEHOLDERS[name]}); give it with --set {name}=...")
    for name in values:
        if name.endswith("_IMAGE") and not _PINNED.fullmatch(values[name]):
            raise Misuse(
                f"{name} = {values[name]!r}: is not a pinned image; write registry/repository:tag (not latest) or @sha256:..."
            )
