"""One synth for all tests of the stacks: the reference experiment, beside it variants, and what may become of it.

`pytest tests/infra -m "not slow"` asserts over the templates in less than 20 s; what is slow
are cfn-lint over the same templates, and CloudFormation's validation with a synth of its own.
"""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cdk8s_charts.render import render
from infra.deployment_file import DeployedExperiment, DeploymentSettings
from infra.synthesis import app_of, configure
from tests.conftest import ROOT
from tests.infra.findings import Found, nag
from tests.infra.templates import Deployment, Deployments
from trnspec.experiment import Experiment, load
from trnspec.experiment.model import Capacity, Network, Serve

gc.set_threshold(100_000, 50, 50)
"""A synth makes many objects that all stay: looking for garbage among them took a sixth of these tests' time."""
ADMIN = "arn:aws:iam::111122223333:role/platform/admin"
SECOND_ADMIN = "arn:aws:iam::111122223333:role/platform/second"
KEY = "arn:aws:kms:us-east-2:111122223333:key/0a1b2c3d-0000-4000-8000-000000000000"
DESTINATION = "arn:aws:logs:us-east-2:444455556666:destination:central"
RESERVATION = "cr-0123456789abcdef0"
TEAM = DeploymentSettings(admins=(ADMIN,))
Variants = dict[str, tuple[Experiment, DeploymentSettings]]


@pytest.fixture(scope="session")
def experiment(reference: Experiment) -> Experiment:
    return reference


def changed(experiment: Experiment, name: str, **cluster: Any) -> Experiment:
    """The experiment under another name, on a cluster of which this is said."""
    return replace(experiment, name=name, cluster=experiment.cluster.model_copy(update=cluster))


@pytest.fixture(scope="session")
def variants(experiment: Experiment) -> Variants:
    """What is deployed beside the reference, and with which settings."""
    found: Variants = {}
    # Room for two nodes, a public endpoint, AWS reached inside the network, an arm promoted.
    settings = experiment.benchmark.model_copy(update={"concurrency": (1, 4)})
    opened = changed(
        replace(experiment, benchmark=settings, serve=Serve(arm="qwen-sd-vllm")),
        "opened",
        admin_cidrs=("203.0.113.7/32",),
        max_nodes=2,
        kubernetes="1.36",
    )
    mailed = TEAM.model_copy(update={"alarm_email": "team@example.com"})
    found["opened"] = opened, mailed
    # A capacity block in the second zone, the device plugin, weights from another bucket.
    block = Capacity(
        kind="capacity-block",
        reservation_id=RESERVATION,
        ends_at="2026-12-01T11:30:00Z",
    )
    plugin = {"allocation": "device-plugin", "logical_nc_config": 1}
    serving = experiment.baseline.serving.model_copy(update=plugin)
    target = replace(experiment.baseline.target, address="s3://my-models/runs/mine")
    arms = tuple(replace(arm, serving=serving, target=target) for arm in experiment.arms)
    rented = changed(replace(experiment, arms=arms), "rented", off_at_utc="23:45", capacity=block)
    rented = changed(rented, "rented", availability_zones=("us-east-2b", "us-east-2a"))
    found["rented"] = rented, DeploymentSettings()
    # The experiment with Vicuna: trn2.3xlarge in another region, without EFA, with the device plugin.
    found["small"] = load(ROOT / "experiments" / "vicuna-7b.yaml"), DeploymentSettings()
    # In an existing VPC of an account that has wishes, with a subnet in the zone that would be the third.
    subnets = {"us-east-2c": "subnet-0c0123456789abcde", "us-east-2a": "subnet-0a0123456789abcde"}
    network = Network(vpc="vpc-0123456789abcdef0", private_subnets=subnets)
    within = changed(experiment, "within", network=network, availability_zones=tuple(subnets))
    wishes: dict[str, Any] = {
        "kms_key": KEY,
        "log_days": 365,
        "log_destination": DESTINATION,
        "tags": {"cost-center": "4711"},
    }
    found["within"] = within, DeploymentSettings(admins=(ADMIN,), **wishes)
    # There by spot.
    spot = {"capacity": Capacity(kind="spot", max_usd_per_hour=20.0), "max_nodes": 2}
    found["spot"] = changed(within, "spot", **spot), TEAM
    # What may become of the reference: another first zone, a reservation there, and whatever else may move.
    later = changed(
        experiment,
        experiment.name,
        kubernetes="1.36",
        admin_cidrs=("203.0.113.7/32",),
        availability_zones=("us-east-2c", "us-east-2a"),
        max_nodes=3,
        capacity=Capacity(kind="reservation", reservation_id=RESERVATION),
        off_at_utc="05:00",
    )
    found["later"] = later, DeploymentSettings(admins=(SECOND_ADMIN, ADMIN))
    # Or a capacity block, and the device plugin; or a key of the account.
    found["bought"] = replace(rented, name=experiment.name), TEAM
    found["keyed"] = experiment, DeploymentSettings(kms_key=KEY)
    # What may become of the existing VPC: one more zone, and other subnets in those that there were.
    moved = {"us-east-2c": "subnet-1c0123456789abcde", "us-east-2a": "subnet-1a0123456789abcde"}
    more = {**moved, "us-east-2b": "subnet-1b0123456789abcde"}
    wider = network.model_copy(update={"private_subnets": more})
    found["wider"] = (
        changed(within, within.name, network=wider, availability_zones=tuple(more)),
        found["within"][1],
    )
    return found


@pytest.fixture(scope="session")
def _synthesized(variants: Variants) -> Iterator[tuple[Path, Found]]:
    with tempfile.TemporaryDirectory(prefix="cdk-out-") as outdir:
        # CloudFormation validation triples the time; one test of its own has it on.
        app = app_of(configure({}), outdir=outdir, validation=False)

        import aws_cdk as cdk  # after app_of, as in production

        from infra.deployment import add_stacks
        from infra.stacks import nodes

        for name, (one, settings) in variants.items():
            wider = name == "wider"
            boundary = cdk.PermissionsBoundary.from_name("bounds") if wider else None
            stage = cdk.Stage(app, name, permissions_boundary=boundary)
            with patch.object(nodes, "SYSTEM_INSTANCE_TYPE", "m7i.2xlarge") if wider else nullcontext():
                add_stacks(stage, DeployedExperiment(experiment=one, files=render(one), settings=settings))
        app.synth()
        yield Path(outdir), nag(app)


@pytest.fixture(scope="session")
def assembly(_synthesized: tuple[Path, Found]) -> Path:
    return _synthesized[0]


@pytest.fixture(scope="session")
def nagged(_synthesized: tuple[Path, Found]) -> Found:
    """What cdk-nag finds."""
    return _synthesized[1]


@pytest.fixture(scope="session")
def made(assembly: Path, variants: Variants) -> Deployments:
    found = {name: Deployment.read(assembly / f"assembly-{name}") for name in variants}
    return Deployments(reference=Deployment.read(assembly), **found)


@pytest.fixture(scope="session")
def templates(assembly: Path) -> list[Path]:
    """As files: every template of the reference, and of the variants those in which they differ from it."""
    differing = re.compile(
        "(opened){2}(network|cluster|nodes|workloads)|(rented){2}nodes|"
        "(within){2}(cluster|nodes|storage|workloads)"
    )
    variants = [path for path in assembly.glob("assembly-*/*.template.json") if differing.match(path.name)]
    return sorted([*assembly.glob("*.template.json"), *variants])
