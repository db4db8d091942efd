"""An account in moto, a cluster behind the real kubectl, and a clock that only moves when it is waited for."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.eks.models import eks_backends

from core.command_line import carried_out
from experiment import Experiment, load
from experiment.model import Network
from lab.aws.moto_models import protection_honoured
from operations.__main__ import VERBS, main
from operations.cloud import access
from operations.cloud.aws import Aws
from operations.cloud.kubernetes import Kubernetes
from tests.conftest import REFERENCE
from tests.operations.api_server import ApiServer, DirectKubernetes, serving
from tests.operations.clients import shared_client
from tests.operations.driver import Driver, driver_of
from tests.operations.enforcement import Enforcement, enforcing, operator
from tests.operations.world import World

# botocore and moto keep so many objects that looking through all of them took an eighth of the time.
gc.set_threshold(50_000, 20, 20)
Say = Callable[..., tuple[int, str, str]]
GROUP, VPC = "sg-0123456789abcdef0", "vpc-0123456789abcdef0"
SUBNETS = {"us-east-2a": "subnet-0a0123456789abcde", "us-east-2b": "subnet-0b0123456789abcde"}


@pytest.fixture(autouse=True)
def enforcement(monkeypatch: pytest.MonkeyPatch) -> Iterator[Enforcement]:
    """Whatever the product calls is called by an operator with the policies of the verb that is under way, or of every verb
    where a test calls parts of the product. What is refused fails the test."""

    def as_operator(command: click.Command, arguments: Sequence[str] = (), *, prog: str) -> int:
        verb = arguments[0] if arguments else ""
        with state.acting_as(operator(verb) if verb in VERBS else state.caller):
            return carried_out(command, arguments, prog=prog)

    monkeypatch.setattr("operations.__main__.carried_out", as_operator)
    with enforcing() as state, state.acting_as(operator()):
        yield state
    assert state.denied == []


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys, and nothing of the user's own configuration."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def account(credentials: None) -> Iterator[None]:
    """An empty account; moto answers in this process, and nothing leaves it."""
    with (
        mock_aws(config={"core": {"mock_credentials": False, "reset_boto3_session": False}}),
        protection_honoured(),
    ):
        yield


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    """The reference experiment."""
    return load(REFERENCE)


@pytest.fixture
def aws(account: None, experiment: Experiment) -> Aws:
    """AWS as a verb sees it."""
    return Aws(experiment.cluster.region, make_client=shared_client)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An empty cluster."""
    with serving(ApiServer()) as server:
        yield server


@pytest.fixture
def cluster(api: ApiServer, tmp_path: Path, experiment: Experiment) -> Kubernetes:
    """The real kubectl on that cluster."""
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(api.url)), encoding="utf-8")
    return Kubernetes(kubectl=access.kubectl(), kubeconfig=config, namespace=experiment.name)


@pytest.fixture
def joining(experiment: Experiment) -> Callable[..., Experiment]:
    """The reference under another name in the cluster `team`, where its section `cluster` says this besides."""

    def changed(**said: Any) -> Experiment:
        network = Network(vpc=VPC, private_subnets=SUBNETS)
        there = {"existing": "team", "security_group": GROUP, "network": network, **said}
        return replace(experiment, name="joined", cluster=experiment.cluster.model_copy(update=there))

    return changed


@pytest.fixture
def team(aws: Aws, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """A cluster of somebody else, with an endpoint that answers."""
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    role = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/r"
    network = {"subnetIds": ["subnet-0a"]}
    shared_client("eks").create_cluster(name="team", roleArn=role, resourcesVpcConfig=network)
    there = eks_backends[DEFAULT_ACCOUNT_ID]["us-east-2"].clusters["team"]
    there.endpoint, there.certificate_authority = api.url, {}
    return api


@pytest.fixture
def direct(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs reach the cluster without kubectl, unless it refuses: then it counts what kubectl makes of that."""

    def reached(**how: Any) -> Kubernetes:
        return Kubernetes(**how) if api.refusal else DirectKubernetes(api, how["namespace"])

    monkeypatch.setattr(access, "Kubernetes", reached)


def kubeconfig(url: str) -> dict[str, object]:
    """Without a user: the server asks nobody who they are."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": ""}}],
        "current-context": "test",
    }


@pytest.fixture
def world(experiment: Experiment, api: ApiServer, account: None, monkeypatch: pytest.MonkeyPatch) -> World:
    """A deployed experiment, which the verbs find by themselves."""
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    world = World(experiment, api)
    world.deploy()
    return world


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Exit code, stdout and stderr of a verb."""

    def called(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return called


@pytest.fixture
def driver(experiment: Experiment, aws: Aws, tmp_path: Path) -> Driver:
    """Runs of the reference experiment, without kubectl."""
    return driver_of(experiment, aws, tmp_path)
