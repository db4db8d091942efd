"""Each thing that may be missing, and what preflight says of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from infra.deployment_file import DeploymentSettings
from infra.pins import ADDON_VERSIONS
from tests.conftest import ROOT
from tests.operations import clients
from tests.operations.clients import shared_client
from tests.operations.clock import START
from tests.store.conftest import TOKEN, StandInHub, hub
from trnspec.core.findings import Finding, Outside, State
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.models import MODELS
from trnspec.experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from trnspec.experiment.model import Capacity
from trnspec.operations.__main__ import main
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.preflight import account_setup, external_services, quota_and_zone
from trnspec.operations.preflight.checklist import run_checks
from trnspec.operations.preflight.external_services import licences, models_with_token

__all__ = ["hub"]
RESERVATION = "cr-0123456789abcdef0"
ENDS = START + timedelta(hours=5)
BLOCK = {
    "CapacityReservationId": RESERVATION,
    "InstanceType": "trn2.48xlarge",
    "AvailabilityZone": "us-east-2b",
    "State": "active",
    "TotalInstanceCount": 1,
    "EndDate": ENDS,
}
REASON = {"StackStatusReason": "The following resource(s) failed: [Group]. "}
STACK = {"StackName": "qwen3-32b-cluster", "CreationTime": START, **REASON}
RELEASES = ("neuron-1.35-v20260625", "standard-1.35-v20260714")
IMAGES = [f"amazon-eks-node-al2023-x86_64-{release}" for release in RELEASES]
Check = Callable[[Experiment, Aws], Finding]
Told = tuple[Any, ...]
"""Service, operation, answers."""


def stubbed(service: str, operation: str, *answers: Any) -> Aws:
    """AWS of which one operation gives these answers; a text is the code of a refusal."""
    client, stub = clients.stubbed(service)
    for answer in answers:
        if isinstance(answer, str):
            stub.add_client_error(operation, answer)
        else:
            stub.add_response(operation, answer)
    made = Aws("us-east-2", make_client=lambda _service: client)
    made.__dict__["identity"] = {"Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/me"}
    return made


def quota(value: float, code: str = ec2.TRN_QUOTA) -> Told:
    told = {"ServiceCode": "ec2", "QuotaCode": code, "Value": value}
    return "service-quotas", "get_service_quota", {"Quota": told}


def images(*names: str) -> Told:
    return "ec2", "describe_images", {"Images": [{"Name": name} for name in names]}


def stack(status: str) -> Told:
    return "cloudformation", "describe_stacks", {"Stacks": [{**STACK, "StackStatus": status}]}


def zones(*names: str) -> Told:
    offered = [{"InstanceType": "trn2.48xlarge", "Location": name} for name in names]
    return "ec2", "describe_instance_type_offerings", {"InstanceTypeOfferings": offered}


def version(name: str, status: str) -> Told:
    ends = datetime(2027, 3, 27, tzinfo=UTC)
    told = {"clusterVersion": name, "versionStatus": status, "endOfStandardSupportDate": ends}
    return "eks", "describe_cluster_versions", {"clusterVersions": [told]}


def addons(**changed: str) -> Told:
    """EKS that offers one version of every add-on, asked in the order of their names."""
    offered = sorted({**ADDON_VERSIONS["1.35"], **changed}.items())
    named = [{"addonName": name, "addonVersions": [{"addonVersion": pinned}]} for name, pinned in offered]
    return "eks", "describe_addon_versions", *({"addons": [one]} for one in named)


def block(**changes: Any) -> Told:
    return "ec2", "describe_capacity_reservations", {"CapacityReservations": [{**BLOCK, **changes}]}


def with_block(experiment: Experiment, **changes: Any) -> Experiment:
    bought = Capacity(kind="capacity-block", reservation_id=RESERVATION)
    capacity = bought.model_copy(update=changes)
    bought_in = {"capacity": capacity, "availability_zones": ("us-east-2b", "us-east-2a")}
    return replace(experiment, cluster=experiment.cluster.model_copy(update=bought_in))


def by_spot(experiment: Experiment, most: float | None = None) -> Experiment:
    capacity = Capacity(kind="spot", max_usd_per_hour=most)
    return replace(experiment, cluster=experiment.cluster.model_copy(update={"capacity": capacity}))


def of_version(experiment: Experiment, version: str) -> Experiment:
    return replace(experiment, cluster=experiment.cluster.model_copy(update={"kubernetes": version}))


def of_spot(most: float | None = None) -> Check:
    return lambda experiment, aws: quota_and_zone.capacity(by_spot(experiment, most), aws, now=START)


def spot(*prices: float) -> Told:
    """The prices of a zone, an hour after each other, the last first, as EC2 lists them."""
    entries = [
        {"Timestamp": START - timedelta(hours=ago), "SpotPrice": f"{usd:.6f}"}
        for ago, usd in enumerate(reversed(prices))
    ]
    return "ec2", "describe_spot_price_history", {"SpotPriceHistory": entries}


def of_block(**changes: Any) -> Check:
    return lambda experiment, aws: quota_and_zone.capacity(with_block(experiment, **changes), aws, now=START)


def of_account(check: Callable[[Aws], Finding]) -> Check:
    return lambda _experiment, aws: check(aws)


def bootstrap(experiment: Experiment, aws: Aws) -> Finding:
    return account_setup.bootstrap(experiment, aws, DeploymentSettings())


def cluster(version: str) -> Told:
    return "eks", "describe_cluster", {"cluster": {"name": "qwen3-32b", "version": version}}


def bootstrapped(version: str) -> Told:
    return "ssm", "get_parameter", {"Parameter": {"Value": version}}


NO_QUOTA = "service-quotas", "get_service_quota", "NoSuchResourceException"
NO_BLOCK = "ec2", "describe_capacity_reservations", "InvalidCapacityReservationId.NotFound"
LATER = block(State="scheduled", StartDate=START + timedelta(days=1))
HALF = "stack qwen3-32b-cluster: is UPDATE_ROLLBACK_FAILED (The following resource(s) failed: [Group])"
GO_ON = "continue-update-rollback --stack-name qwen3-32b-cluster --region us-east-2"
FIVE = "5 vCPUs for running on-demand standard instances, system nodes and the bastion need 10"
ACTIVE = "active until 2026-04-01T17:00:00Z, 5.0 hours from now"
FOUND: list[tuple[Check, Told, str, str]] = [
    (quota_and_zone.quota, quota(192), "192 vCPUs", ""),
    (lambda one, aws: quota_and_zone.quota(with_block(one), aws), quota(0), "does not count against", ""),
    (
        account_setup.cluster_version,
        ("eks", "describe_cluster", "ResourceNotFoundException"),
        "no cluster",
        "",
    ),
    (account_setup.cluster_version, cluster("1.34"), "has Kubernetes 1.34; the file asks for 1.35", ""),
    (
        account_setup.cluster_version,
        cluster("1.36"),
        "cluster qwen3-32b has Kubernetes 1.36, the file asks for 1.35; EKS cannot downgrade",
        'write kubernetes: "1.36" into the section cluster',
    ),
    (
        account_setup.cluster_version,
        cluster("1.33"),
        "cluster qwen3-32b has Kubernetes 1.33, the file asks for 1.35; EKS upgrades one minor version at a time",
        "update-cluster-version --name qwen3-32b --kubernetes-version 1.34 --region us-east-2; then go on to 1.35",
    ),
    (
        lambda one, aws: account_setup.cluster_version(of_version(one, "1.36"), aws),
        cluster("1.34"),
        "has Kubernetes 1.34, the file asks for 1.36; EKS upgrades one minor version at a time",
        'write kubernetes: "1.35" into the section cluster, then make manifests, and deploy; then go on to 1.36',
    ),
    (account_setup.cluster_version, cluster("1.37"), "has Kubernetes 1.37", "catalogue/runtimes.py, then"),
    (account_setup.node_images, images(*IMAGES), "release 1.35.6-20260625 with Neuron driver 2.28.0.0", ""),
    (account_setup.addons, addons(), "all pinned versions are offered for 1.35", ""),
    (account_setup.incomplete_stacks, stack("UPDATE_COMPLETE"), "no stack is incomplete", ""),
    (account_setup.kubernetes_version, version("1.35", "STANDARD_SUPPORT"), "EKS 1.35, standard support", ""),
    (quota_and_zone.instance_offered, zones("us-east-2a", "us-east-2c"), "offered in us-east-2a", ""),
    (of_block(ends_at=stamp(ENDS)), block(), ACTIVE, ""),
    (of_spot(), spot(9.5, 14.56), "costs $14.56 per hour in us-east-2a; whether one is there is known", ""),
    (of_spot(15), spot(14.56), "$14.56 per hour", ""),
    (
        of_spot(14),
        spot(9.5, 14.56),
        "$14.56 per hour in us-east-2a, more than max_usd_per_hour 14",
        "wait, use",
    ),
    (of_spot(14), spot(), "EC2 has no spot price for trn2.48xlarge in us-east-2a", "offers, below"),
    (quota_and_zone.quota, quota(8), "8 vCPUs", "--quota-code L-2C3B7624 --desired-value 192"),
    (quota_and_zone.quota, NO_QUOTA, "0 vCPUs", "192"),
    (
        lambda one, aws: quota_and_zone.quota(by_spot(one), aws),
        quota(192, ec2.SPOT_QUOTA),
        "192 vCPUs for running Trn spot",
        "",
    ),
    (
        lambda one, aws: quota_and_zone.quota(by_spot(one), aws),
        NO_QUOTA,
        "0 vCPUs",
        "--quota-code L-6B0D517C",
    ),
    (
        of_account(quota_and_zone.system_quota),
        quota(5, ec2.STANDARD_QUOTA),
        FIVE,
        "--quota-code L-1216C47A --desired-value 10",
    ),
    (bootstrap, bootstrapped("5"), "version 5, 6 or later is needed", "bootstrap aws://1"),
    (
        account_setup.node_images,
        images(IMAGES[1]),
        f"us-east-2 has no {IMAGES[0]}",
        "catalogue/runtimes.py",
    ),
    (account_setup.addons, addons(coredns="v9"), "does not offer coredns v1.", "infra/pins.py"),
    (account_setup.incomplete_stacks, stack("UPDATE_ROLLBACK_FAILED"), HALF, GO_ON),
    (
        account_setup.kubernetes_version,
        version("1.35", "EXTENDED_SUPPORT"),
        "costs $0.60 per hour",
        "standard",
    ),
    (
        account_setup.kubernetes_version,
        version("1.36", "STANDARD_SUPPORT"),
        "EKS does not offer 1.35",
        "1.36",
    ),
    (
        quota_and_zone.instance_offered,
        zones("us-east-2c"),
        "offered in us-east-2c, not in us-east-2a",
        "with us-east-2c",
    ),
    (quota_and_zone.instance_offered, zones(), "not offered in us-east-2", "change cluster.region"),
    (of_block(), LATER, "is scheduled and starts at 2026-04-02", "after that"),
    (of_block(), block(State="expired"), "is expired", "buy another"),
    (of_block(), block(EndDate=START + timedelta(minutes=20)), "ends at 2026-04-01T12:20:00Z", "extend"),
    (of_block(), block(InstanceType="trn2.3xlarge"), "reserves trn2.3xlarge", "another reservation"),
    (of_block(), block(AvailabilityZone="us-east-2a"), "the experiment in us-east-2b", "with us-east-2a"),
    (of_block(), block(TotalInstanceCount=0), "has 0 instances", "max_nodes to 0"),
    (of_block(ends_at="2026-04-02T17:00:00Z"), block(), "EC2 says 2026-04-01T17:00:00Z", "write ends_at"),
    (of_block(), NO_BLOCK, "no such reservation in account 111122223333", "cluster.capacity.reservation_id"),
]


def test_what_is_there_is_fine_and_what_is_missing_a_finding_with_what_to_do(experiment: Experiment) -> None:
    for check, told, says, remedy in FOUND:
        found = check(experiment, stubbed(*told))
        state = State.FINDING if remedy else State.FINE
        assert (found.state, says in found.line(), remedy in found.remedy) == (state, True, True), found
    assert SYSTEM_INSTANCE_TYPE.endswith(".xlarge"), "the four vCPUs that the quota counts"


class _Address(BaseHTTPRequestHandler):
    """Is asked by machines from 203.0.113.7."""

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>" if self.path == "/page" else b"203.0.113.7\n")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The URL of a server that says from where it is asked."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Address)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}/"
    http.shutdown()
    http.server_close()
    thread.join()


def test_this_machine_must_be_among_the_admin_cidrs_and_a_private_endpoint_needs_the_plugin(
    experiment: Experiment, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def judged(*cidrs: str) -> Finding:
        cluster = experiment.cluster.model_copy(update={"admin_cidrs": cidrs})
        return external_services.admin_cidrs(replace(experiment, cluster=cluster))

    monkeypatch.setattr(external_services, "ADDRESS_SERVICE", address)

    assert judged("198.51.100.0/24", "203.0.113.0/24").state is State.FINE
    assert judged("198.51.100.0/24").remedy == "add 203.0.113.7/32 to cluster.admin_cidrs and deploy"
    for wrong in (f"{address}page", "http://127.0.0.1:1/"):
        monkeypatch.setattr(external_services, "ADDRESS_SERVICE", wrong)
        with pytest.raises(Outside, match="gives no address"):
            judged("203.0.113.0/24")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "session-manager-plugin is not installed" in judged().why
    (tmp_path / "session-manager-plugin").write_text("")
    (tmp_path / "session-manager-plugin").chmod(0o755)
    assert judged().state is State.FINE


def test_models_that_hugging_face_gives_to_accepted_users_only_are_asked_for_before_anything_is_rented(
    experiment: Experiment, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(token: str | None, *, model: str = "org/model", revision: str | None = None) -> Finding:
        monkeypatch.setenv("HF_TOKEN", token or "")
        monkeypatch.setattr(external_services, "HUB", hub.url)
        known = replace(MODELS["Qwen/Qwen3-0.6B"], name=model, gated=True)
        weights = replace(experiment.baseline.target, model=known, revision=revision)
        arms = (replace(experiment.baseline, target=weights),)
        return licences(replace(experiment, arms=arms, token_secret="hf-token"))

    unseen = "org/other does not exist on Hugging Face, or HF_TOKEN may not see it"
    assert ask(TOKEN, model="org/other").why == unseen
    assert ask(TOKEN, revision="b" * 40).why == f"org/model has no revision {'b' * 40}"
    hub.gated = True
    found = ask(TOKEN)
    there = "HF_TOKEN may read org/model; Secret hf-token must hold the same token"
    assert (found.state, found.why) == (State.FINE, there)
    found = ask("hf_somebody-else")
    assert found.why == "org/model is gated, and the account of HF_TOKEN has no access"
    assert "accept its licence on https://huggingface.co/org/model" in found.remedy
    assert (found.state, hub.downloaded) == (State.FINDING, [])
    del hub.files["config.json"]
    assert ask(TOKEN).state is State.FINE, "a head without that file is given out as well"
    with pytest.raises(Outside, match="HF_TOKEN is not set, so it is not known whether org/model can be"):
        ask(None)
    hub.url = "http://127.0.0.1:1"
    with pytest.raises(Outside, match="Hugging Face could not be asked"):
        ask(TOKEN)
    assert models_with_token(experiment) == ()
    llama = load(ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml")
    assert [one.model.name for one in models_with_token(llama)] == [one.model.name for one in llama.weights]
    elsewhere = replace(llama.baseline, target=replace(llama.baseline.target, address="s3://mine/llama"))
    assert models_with_token(replace(llama, arms=(elsewhere,))) == ()


def test_preflight_as_it_is_called(
    account: None, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On an account in which nobody did anything yet; EKS's versions, which moto does not list, are refused."""
    eks = boto3.client("eks", region_name="us-east-2")
    monkeypatch.setattr(Aws, "_boto_client", lambda _, name: eks if name == "eks" else shared_client(name))
    monkeypatch.setattr(external_services, "ADDRESS_SERVICE", address)
    with Stubber(eks) as stub:
        stub.add_client_error("describe_cluster_versions", "AccessDeniedException")
        assert main(["preflight", "--json"]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert (next(iter(found)), found["credentials"]["state"]) == ("credentials", "fine")
    assert ".venv/bin/npx cdk bootstrap aws://123456789012/us-east-2 --cloud" in found["bootstrap"]["remedy"]
    assert found["admins"]["remedy"].startswith("write arn:aws:sts::123456789012:user/moto there")
    assert found["kubernetes"]["state"] == "unknown"
    assert "eks:DescribeClusterVersions" in found["kubernetes"]["where"]
    assert all(one["remedy"] for one in found.values() if one["state"] != "fine")


def test_without_credentials_only_what_needs_none_is_checked(
    credentials: None, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(external_services, "HUB", hub.url)
    llama = load(ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml")
    findings = list(run_checks(llama, Aws("us-east-2"), now=START))
    assert [one.check for one in findings] == ["credentials", "account", "licences", "admin_cidrs"]
    assert {one.state for one in findings[:2]} == {State.UNKNOWN}
    assert "versions, bootstrap and stacks were not asked about" in findings[1].why
    (found,) = (one for one in findings if one.check == "licences")
    assert found.state is State.FINDING
    assert found.why.startswith("meta-llama/Llama-3.1-8B-Instruct does not exist")
