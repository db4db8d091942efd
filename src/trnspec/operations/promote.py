"""`promote ARM`: the section of the experiment file that makes an arm a service, its cost, and the next commands."""

from __future__ import annotations

import difflib
import math
from pathlib import Path

import click

from trnspec.core.console import print_json, print_text
from trnspec.core.findings import Misuse
from trnspec.core.words import count
from trnspec.experiment import load
from trnspec.experiment.cost import node_price
from trnspec.operations.options import with_experiment


@with_experiment
@click.argument("arm", metavar="ARM")
@click.option(
    "--replicas", type=click.IntRange(1), default=1, metavar="N", help="The number of replicas (default 1)."
)
def command(path: Path, arm: str, replicas: int, as_json: bool) -> int:
    """Print the `serve` section that makes ARM a service, its cost, and the next two commands. Changes nothing.

    With the section in the file, ARM has N replicas and the other arms have 0.
    """
    experiment = load(path)
    names, cluster = [one.name for one in experiment.arms], experiment.cluster
    if arm not in names:
        close = difflib.get_close_matches(arm, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
        raise Misuse(f"{arm}: is not an arm of this experiment that serves requests; {hint}")
    on_a_node = experiment.instance.devices // experiment.baseline.serving.devices
    if replicas > (most := on_a_node * cluster.max_nodes):
        verb = "holds" if cluster.max_nodes == 1 else "hold"
        where = f"{cluster.max_nodes} x {experiment.instance.name} {verb}"
        raise Misuse(
            f"--replicas {replicas}: {where} {count(most, 'arm')}; use {most} or less, or raise cluster.max_nodes"
        )
    nodes = math.ceil(replicas / on_a_node)
    usd = nodes * node_price(experiment).usd_per_hour
    next_ = [f"./trnspec {verb} {experiment.file}" for verb in ("render", "deploy")]
    section = {"arm": arm, "replicas": replicas}
    if as_json:
        told = {"experiment": experiment.name, "serve": section, "nodes": nodes, "usd_per_hour": usd}
        print_json({**told, "next": next_})
        return 0
    print("serve:", *(f"  {key}: {value}" for key, value in section.items()), sep="\n")
    print_text(
        "",
        f"This needs {count(nodes, 'Trn2 node')}, ${usd:.2f} an hour at the quoted price. The service ends when AWS sets the nodes to 0: "
        f"{cluster.off_when}. Write the section into {path}, then:",
    )
    print(*(f"    {line}" for line in next_), sep="\n")
    return 0
