"""`contribute RUN`: what a run on Trainium2 measured, as one small file that others can cite; without prompts, answers, accounts or hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from core.console import print_json
from core.files import write_whole
from core.findings import Misuse, Refusal
from experiment import Arm, Experiment
from experiment.arms import digest
from experiment.catalogue import published
from experiment.catalogue.models import MODELS
from infra.pins import NEURON_CHART
from operations.options import FILE, ROOT, experiment_of, with_experiment

_COMPARED = (
    "ratio",
    "ci_low",
    "ci_high",
    "n_prompts",
    "n_pairs",
    "verdict",
    "baseline_tpot_s",
    "treatment_tpot_s",
)
_RUN = (
    "id",
    "started",
    "client",
    "plan_sha256",
    "prompts_sha256",
    "requests_per_cell",
    "max_tokens",
    "temperature",
)


@with_experiment
@click.argument("run", type=FILE, metavar="RUN")
@click.option(
    "--write", is_flag=True, help=f"Write the file into {published.CONTRIBUTED.relative_to(ROOT)}/."
)
def command(path: Path, run: Path, write: bool, as_json: bool) -> int:
    """Show, and with --write keep, what RUN measured on Trainium2: figures, shapes and versions, for a pull request.

    It has no prompts, answers, account ids, buckets or host names. A row of it is a published result like any other.
    """
    experiment = experiment_of(path, verb="contribute")
    summary = summary_of(run)
    if (provenance := summary["run"]["provenance"]) != "measured":
        raise Misuse(
            f"{run}: is {provenance}, and only what was measured on Trainium2 is contributed; give a run of ./trnspec run"
        )
    content = contribution(experiment, summary, commit=_commit())
    text = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    target = published.CONTRIBUTED / f"{experiment.name}-{content['run']['id'].lower()}.yaml"
    if write:
        target.parent.mkdir(exist_ok=True)
        write_whole(target, text)
    if as_json:
        print_json({"written": str(target) if write else None, **content})
        return 0
    print(text, end="")
    print(
        f"# written: {os.path.relpath(target)}; read it, then open a pull request with it"
        if write
        else "# not written: read it, then give --write"
    )
    return 0


def summary_of(run: Path) -> dict[str, Any]:
    """Raises `Misuse` for a folder without the summary of a complete run."""
    file = run / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        about = summary["run"]
        complete = about["complete"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Misuse(
            f"{file}: is not the summary of a run; give the folder of one, or make it: ./trnspec benchmark report {run}"
        ) from None
    if not complete:
        done = f"{about['requests_recorded']} of {about['requests_planned']} requests"
        raise Misuse(f"{run}: has {done}; finish the run (./trnspec run) first")
    return summary


def contribution(experiment: Experiment, summary: Mapping[str, Any], *, commit: str) -> dict[str, Any]:
    """The content of the file: the run, where it ran, its arms, its figures, and the rows for the published results.

    Raises `Refusal` where the run's arms are not the experiment's: nothing would be known of their engines.
    """
    arms = {arm.name: arm for arm in experiment.served_arms}
    if unknown := [arm["name"] for arm in summary["run"]["arms"] if arm["name"] not in arms]:
        raise Refusal(
            f"{experiment.name}: has no arm {', '.join(unknown)}, which the run measured; name the experiment file of that run"
        )
    image, cluster = experiment.node_image, experiment.cluster
    return {
        "schema": 1,
        "origin": "contributed",
        "run": {
            **{key: summary["run"][key] for key in _RUN},
            "commit": commit,
            "configuration_sha256": digest(experiment),
        },
        "where": {
            "instance": cluster.instance,
            "region": cluster.region,
            "bought": cluster.capacity.kind,
            "kubernetes": cluster.kubernetes,
            "node_image": image.release if image else None,
            "neuron_driver": image.neuron_driver if image else None,
            "neuron_chart": NEURON_CHART.version,
            "allocation": experiment.baseline.serving.allocation,
        },
        "arms": [_arm(arms[one["name"]]) for one in summary["run"]["arms"]],
        "figures": [*_figures(summary)],
        **_rows(experiment, arms, summary),
    }


def _arm(arm: Arm) -> dict[str, Any]:
    draft = arm.speculation
    return {
        "name": arm.name,
        "runtime": arm.runtime.name,
        "sdk": arm.runtime.neuron_sdk,
        "vllm": arm.runtime.vllm,
        "image": arm.runtime.image,
        "target": arm.target.model.name,
        "target_revision": arm.target.revision,
        "mode": draft.mode if draft else "plain",
        "draft": draft.draft.model.name if draft else None,
        "num_speculative_tokens": arm.num_speculative_tokens,
        "devices": arm.serving.devices,
        "tensor_parallel": arm.serving.tensor_parallel,
        "logical_nc_config": arm.serving.logical_nc_config,
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
        "engine": dict(arm.engine),
    }


def _figures(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each class and load of each treatment, and one for all classes, with its interval."""
    tokens = {
        (row["treatment"], row["class"], row["concurrency"], row["rate_per_s"]): row["tokens_per_step"]
        for row in summary["explanations"]
    }
    by_class = [row for row in summary["comparisons"] if row["metric"] == "tpot_s"]
    for row in (*by_class, *summary["mix"]):
        place = row["treatment"], row["class"], row["concurrency"], row["rate_per_s"]
        yield {
            **{key: row[key] for key in ("baseline", "treatment", "class", "concurrency", "rate_per_s")},
            **{key: row[key] for key in _COMPARED if key in row},
            "tokens_per_step": tokens.get(place),
        }


def _rows(
    experiment: Experiment, arms: Mapping[str, Arm], summary: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Rows as `published.yaml` has them: times over all classes, at each load."""
    run, plain, drafted = summary["run"], dict[str, dict[str, Any]](), list[dict[str, Any]]()
    source, date = f"contributed: run {run['id']} of {experiment.name}", run["started"][:10]
    for row in summary["mix"]:
        base, arm = arms[row["baseline"]], arms[row["treatment"]]
        if base.target.model.name not in MODELS:
            continue  # a row needs a shape that others can look up; the figures above have the run
        if row["concurrency"] is None or not row["baseline_tpot_s"] or not row["treatment_tpot_s"]:
            continue
        load, stack = row["concurrency"], f"{base.runtime.name}, SDK {base.runtime.neuron_sdk}"
        name = _name(run["id"], base, load)
        plain[name] = {
            "row": name,
            "model": base.target.model.name,
            "instance": experiment.instance.name,
            "tensor_parallel": base.serving.degree_on(experiment.instance),
            "logical_nc_config": base.serving.logical_nc_config,
            "batch": base.serving.max_num_seqs,
            "compiled_tokens": base.serving.max_model_len,
            "concurrency": load,
            "tpot_s": round(row["baseline_tpot_s"], 6),
            "statistic": f"geometric mean of {row['n_prompts']} prompts",
            "stack": stack,
            "derived": "compiled_tokens is max_model_len; the bucket that a step reads may be smaller",
            "source": source,
            "date": date,
        }
        if arm.speculation is None or arm.speculation.mode not in published.MODES:
            continue
        drafted.append(
            {
                "row": _name(run["id"], arm, load),
                "base": name,
                "mode": arm.speculation.mode,
                "draft": arm.speculation.draft.model.name,
                "num_speculative_tokens": arm.num_speculative_tokens,
                "concurrency": load,
                "plain_tpot_s": round(row["baseline_tpot_s"], 6),
                "tpot_s": round(row["treatment_tpot_s"], 6),
                "source": source,
                "date": date,
            }
        )
    return {"plain": list(plain.values()), "drafted": drafted}


def _name(run: str, arm: Arm, load: int) -> str:
    return f"{run.lower()}/{arm.name}/{load}"


def _commit() -> str:
    """The commit that measured, with `+changes` where the tree has others; `unknown` outside a clone."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    found = done.stdout.strip()
    return found if re.fullmatch(r"[0-9a-f]{40}(\+changes)?", found) else "unknown"
