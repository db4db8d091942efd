"""An account in moto, a cluster behind the real kubectl, and a clock that only moves when it is waited for."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from botocore.exceptions import ConnectTimeoutError
from moto import mock_aws

from tests.conftest import REFERENCE
from tests.lab.aws.deletion import protection_honoured
from tests.operations.api_server import ApiServer, DirectKubernetes, serving
from tests.operations.clients import shared_client
from tests.operations.driver import Driver, driver_of
from tests.operations.enforcement import Enforcement, enforcing, operator
from tests.operations.recorded import ASKED, FIT, Recorded, block, history, regions
from tests.operations.world import World
from trnspec.core.command_line import carried_out
from trnspec.core.json_text import json_text
from trnspec.experiment import Experiment, load
from trnspec.operations.__main__ import VERBS, main
from trnspec.operations.cloud import access
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.kubernetes import Kubernetes
from trnspec.operations.preflight import capacity_offers

# botocore and moto keep so many objects that looking through all of them took an eighth of the time.
gc.set_threshold(50_000, 20, 20)
Say = Callable[..., tuple[int, str, str]]
Offers = Callable[[Path], tuple[dict[str, Any], str]]


@pytest.fixture(autouse=True)
def enforcement(monkeypatch: pytest.MonkeyPatch) -> Iterator[Enforcement]:
    """Whatever the product calls is called by an operator with the policies of the verb that is under way, or of the verb whose
    module a test calls. What is refused fails the test."""

    def as_operator(command: click.Command, arguments: Sequence[str] = (), *, prog: str) -> int:
        verb = arguments[0] if arguments else ""
        with state.acting_as(operator(verb) if verb in VERBS else state.caller):
            return carried_out(command, arguments, prog=prog)

    monkeypatch.setattr("trnspec.operations.__main__.carried_out", as_operator)
    with enforcing() as state:
        state.by_module = True
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
    return Kubernetes(kubectl=access.kubectl(), kubeconfig=config, experiment=experiment)


@pytest.fixture
def direct(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs reach the cluster without kubectl, unless it refuses: then it counts what kubectl makes of that."""

    def reached(**how: Any) -> Kubernetes:
        return Kubernetes(**how) if api.refusal else DirectKubernetes(api, how["experiment"])

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


@pytest.fixture
def recorded(credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """The account of the question, on its day; one region does not answer."""
    made = Recorded()
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: made.client(service, self.region)[0])
    monkeypatch.setattr("trnspec.operations.cloud.clock.Clock.now", lambda _: ASKED)

    def silent(**_: object) -> None:
        raise ConnectTimeoutError(endpoint_url="https://ec2.me-south-1.amazonaws.com/")

    events = made.client("ec2", "me-south-1")[0].meta.events
    events.register_first("provide-client-params.ec2", silent)
    yield made
    events.unregister("provide-client-params.ec2", silent)


@pytest.fixture
def large(recorded: Recorded) -> Recorded:
    """The reference, on a trn2.48xlarge. One region does not offer it, one does not answer, one is not enabled."""
    name = "trn2.48xlarge"
    regions(
        recorded,
        "ap-south-2",
        "me-south-1",
        "sa-east-1",
        "us-east-2",
        home="us-east-2",
        off=("ap-southeast-4",),
    )
    spot = history(name, us_east_2c=(14.5593, 8.9914, 12.9692, 15.3679))
    recorded.place(
        "us-east-2",
        "us-east-2a",
        "us-east-2b",
        "us-east-2c",
        instance=name,
        spot=spot,
        blocks=[(24, {"CapacityBlockOfferings": []}), (48, {"CapacityBlockOfferings": []})],
    )
    zone, ends = "ap-south-2b", ASKED.replace(hour=11, minute=30)
    offered = [
        block(FIT, hours=8, usd="308.14", zone=zone, starts=ends - timedelta(hours=8)),
        block("cb-0aaaaaaaaaaaaaaa2", hours=24, usd="858.26", zone=zone, starts=ends),
        block("cb-0aaaaaaaaaaaaaaa3", hours=32, usd="1166.40", zone=zone, starts=ends - timedelta(hours=8)),
        block("cb-0aaaaaaaaaaaaaaa4", hours=3, usd="115.00", zone=zone, starts=ends),
    ]
    recorded.place(
        "ap-south-2",
        "ap-south-2a",
        zone,
        "ap-south-2c",
        instance=name,
        spot={"SpotPriceHistory": []},
        blocks=[(24, {"CapacityBlockOfferings": offered})],
    )
    recorded.place("sa-east-1", instance=name, spot={}, blocks=[])
    return recorded


@pytest.fixture
def offers() -> Offers:
    """What the market of the account answers about a file: as JSON, and as text."""

    def asked(file: Path) -> tuple[dict[str, Any], str]:
        experiment = load(file)
        found = capacity_offers.ask(experiment, Aws(experiment.cluster.region), now=ASKED)
        return json.loads(json_text(capacity_offers.as_json(found))), "\n".join(
            [*capacity_offers.as_lines(found)]
        )

    return asked


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the reference that may be written to."""
    return Path(shutil.copy(REFERENCE, tmp_path / "qwen3-32b.yaml"))
