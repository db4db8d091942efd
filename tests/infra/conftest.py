"""One synth for all tests of the stacks: the reference experiment, and beside it a variant with everything open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts.render import render
from experiment import Experiment, load
from infra.app import build_app
from tests.infra.templates import Deployment

# CloudFormation validation triples the time of a synth; one test of its own has it on.
os.environ.setdefault("CDK_VALIDATION", "false")
os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "1")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

ROOT = Path(__file__).resolve().parents[2]
ADMIN = "arn:aws:iam::111122223333:role/platform/admin"


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    """The reference experiment."""
    return load(ROOT / "experiments" / "qwen3-32b.yaml")


@pytest.fixture(scope="session")
def opened(experiment: Experiment) -> Experiment:
    """The same with nodes, a second treatment (which needs a second node) and a public endpoint."""
    cluster = replace(experiment.cluster, admin_cidrs=("203.0.113.7/32",), nodes=1, kubernetes="1.36")
    arms = (*experiment.arms, replace(experiment.arms[1], name="qwen-sd-again"))
    settings = replace(experiment.benchmark, concurrency=(1, 4))
    return replace(experiment, name="opened", cluster=cluster, arms=arms, benchmark=settings)


@pytest.fixture(scope="session")
def _synthesized(opened: Experiment) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cdk-out-") as outdir:
        app = build_app(outdir=outdir)

        import aws_cdk as cdk  # after build_app, as in production

        from infra.deployment import add_stacks

        add_stacks(
            cdk.Stage(app, "opened"),
            experiment=opened,
            files=render(opened),
            admins=(ADMIN,),
            alarm_email="team@example.com",
        )
        app.synth()
        yield Path(outdir)


@pytest.fixture(scope="session")
def deployment(_synthesized: Path) -> Deployment:
    """What the reference experiment deploys."""
    return Deployment.read(_synthesized)


@pytest.fixture(scope="session")
def open_deployment(_synthesized: Path) -> Deployment:
    """What the variant deploys."""
    return Deployment.read(_synthesized / "assembly-opened", prefix="opened")
