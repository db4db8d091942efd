"""`deploy` and a run, `deploy` and another cluster: what is refused, and what a run makes of a deployment that nobody refused."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from moto.cloudformation.models import cloudformation_backends
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT

from infra.synthesis import configure
from tests.conftest import REFERENCE
from tests.operations import ready
from tests.operations.clients import make_stacks, protected, shared_client
from tests.operations.conftest import Say
from tests.operations.driver import Driver
from tests.operations.world import World
from trnspec.core.findings import fine
from trnspec.experiment import naming
from trnspec.operations import deploy
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.preflight import account_setup
from trnspec.operations.running.state import LEASE, RunStore, claimed

_SYNTHESIZED = deploy.synthesized
ADMIN = "arn:aws:iam::123456789012:role/admin"
Templates = Mapping[str, deploy.Template]


@pytest.fixture
def offers(world: World) -> Iterator[ready.Offers]:
    with ready.offering(world.experiment) as found:
        yield found


@pytest.fixture
def started(
    offers: ready.Offers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[list[str]]]:
    """Command lines of the CDK, which is not started, in an account where a deployment may begin. Its buckets have a stack."""
    here, found = Path.cwd(), list[list[str]]()
    monkeypatch.setenv("CDK_DOCKER", sys.executable)
    monkeypatch.setattr(os, "execv", lambda _program, words: found.append(words))
    settings(monkeypatch, tmp_path, admins=f"[{ADMIN}]")
    monkeypatch.setattr(deploy, "synthesized", lambda _: {"qwen3-32b-storage": {"Resources": {}}})
    make_stacks("qwen3-32b", "storage", protected=())
    ready.bootstrap()
    yield found
    os.chdir(here)


def settings(monkeypatch: pytest.MonkeyPatch, folder: Path, **given: str) -> None:
    """The deployment.yaml of this deployment."""
    file = folder / "deployment.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in given.items()), encoding="utf-8")
    for module in ("cloud.aws", "preflight.checklist"):
        monkeypatch.setattr(f"trnspec.operations.{module}.DEPLOYMENT", file)


def test_deploy_asks_what_preflight_asks_and_starts_nothing_that_would_end_in_the_middle(
    world: World,
    offers: ready.Offers,
    say: Say,
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    offers.vcpus = 8
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, len(started)) == (0, 1), "nodes come later than a deployment"
    assert (
        "preflight, quota: 8 vCPUs for running on-demand Trn instances, 1 x trn2.48xlarge needs 192; aws"
        in err
    )
    assert (
        "request-service-quota-increase --service-code ec2 --quota-code L-2C3B7624 --desired-value 192" in err
    )
    started.clear()
    offers.zone = "us-east-2c"
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, started) == (1, [])
    assert "preflight, instance: trn2.48xlarge is offered in us-east-2c, not in us-east-2a" in err
    offers.zone, offers.addons = "", {"coredns": "v9"}
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, started) == (1, [])
    assert "preflight, add-ons: EKS 1.35 in us-east-2 does not offer coredns v1" in err
    offers.addons = {}
    settings(monkeypatch, tmp_path, account="")
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, started) == (1, [])
    assert "preflight, admins: admins of deployment.yaml is empty, so nobody could use kubectl" in err
    assert say("deploy", str(REFERENCE), "--dry-run")[0] == 0, "a difference needs no administrator"
    settings(monkeypatch, tmp_path, admins=f"[{ADMIN}]")
    world.client("ssm").delete_parameter(Name="/cdk-bootstrap/hnb659fds/version")
    assert "us-east-2 of account 123456789012 is not bootstrapped; deploy" in say("deploy", str(REFERENCE))[2]


def test_deploy_refuses_a_name_of_which_cloudformation_may_make_no_role(
    started: list[list[str]], say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deploy, "read", lambda *_: ())  # its manifests
    file = tmp_path / "mine.yaml"
    text = REFERENCE.read_text(encoding="utf-8").replace("name: qwen3-32b", "name: mine", 1)
    file.write_text(text.replace("prompts/", f"{REFERENCE.parent}/prompts/"), encoding="utf-8")
    code, _, err = say("deploy", str(file))
    assert code != 0
    assert "CloudFormation may not make roles whose names begin with mine-" in err


@pytest.fixture(scope="module")
def templates() -> Templates:
    """Of the reference experiment's stacks, as a deployment compares them."""
    return deploy.synthesized(REFERENCE)


def changed(templates: Templates, part: str, kind: str, **properties: Any) -> Templates:
    """The templates, of which one resource of a stack has these properties besides."""
    found = copy.deepcopy(dict(templates))
    resources = found[f"qwen3-32b-{part}"]["Resources"].values()
    next(one for one in resources if one["Type"] == f"AWS::{kind}")["Properties"].update(properties)
    return found


def compared(before: Templates, after: Templates) -> list[str]:
    parts = ("qwen3-32b-storage", "qwen3-32b-cluster")
    found = [deploy.replaced(part, before[part], after[part]) for part in parts]
    return [one.line() for one in found if one]


@pytest.mark.slow
def test_deploy_refuses_what_would_replace_the_cluster_or_a_bucket_and_nothing_that_changes_in_place(
    templates: Templates,
) -> None:
    assert compared(templates, templates) == []
    assert compared(templates, changed(templates, "cluster", "EKS::Cluster", Version="1.36")) == []
    for part, kind, path, properties in (
        ("cluster", "EKS::Cluster", "EncryptionConfig", {"EncryptionConfig": []}),
        ("cluster", "EKS::Cluster", "BootstrapSelfManagedAddons", {"BootstrapSelfManagedAddons": True}),
        (
            "cluster",
            "EKS::Cluster",
            "ResourcesVpcConfig/SubnetIds",
            {"ResourcesVpcConfig": {"SubnetIds": ["c"]}},
        ),
        ("storage", "S3::Bucket", "BucketName", {"BucketName": "another"}),
    ):
        (line,) = compared(templates, changed(templates, part, kind, **properties))
        assert re.search(
            rf"qwen3-32b-{part}: this .* replace \w+ \(AWS::{kind}, {path}\), which must stay", line
        )


@pytest.mark.slow
def test_a_kms_key_that_is_named_after_the_first_deployment_is_refused_before_anything_is_built(
    templates: Templates, say: Say, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the templates of a real synthesis, before and after."""
    key = shared_client("kms").create_key(Policy=json.dumps({"Statement": ready.ANYTHING}))["KeyMetadata"][
        "Arn"
    ]
    settings(monkeypatch, tmp_path, admins=f"[{ADMIN}]", kms_key=key)
    monkeypatch.setattr(account_setup, "imported_key", lambda *_: fine("usable"))
    later = configure({"experiment": str(REFERENCE)}, deployment=tmp_path / "deployment.yaml")
    monkeypatch.setattr(deploy, "configure", lambda _: later)
    monkeypatch.setattr(deploy, "synthesized", _SYNTHESIZED)
    client = shared_client("cloudformation")
    client.delete_stack(StackName="qwen3-32b-storage")
    for part in ("storage", "cluster"):
        standing = {"T": {"Type": "AWS::SNS::Topic"}}
        tags = [{"Key": "experiment", "Value": "qwen3-32b"}]
        client.create_stack(
            StackName=f"qwen3-32b-{part}", TemplateBody=json.dumps({"Resources": standing}), Tags=tags
        )
    stacks = cloudformation_backends[ACCOUNT]["us-east-2"].stacks.values()
    for stack in stacks:  # moto would make all of it
        stack.template = json.dumps(templates[stack.name])
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, started) == (1, [])
    storage, cluster = err.splitlines()[-2:]
    assert re.search(r"stack qwen3-32b-storage: .* replace StoreKey\w+ \(AWS::KMS::Key\), ", storage)
    assert storage.count("(AWS::S3::Bucket, BucketEncryption)") == 3
    assert (
        "(AWS::EKS::Cluster, EncryptionConfig), which must stay as it was created; take the change" in cluster
    )
    assert "take the change of deployment.yaml (kms_key) or of the file back" in cluster


def test_what_is_compared_is_what_the_schemas_of_cloudformation_fix_and_what_eks_and_pods_need() -> None:
    for kind, compared in deploy.FIXED.items():
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-2", kind).schema
        fixed = {path.removeprefix("/properties/") for path in schema.get("createOnlyProperties", ())}
        assert {*compared} - {"BucketEncryption", "ResourcesVpcConfig/SubnetIds"} == fixed


def test_deploy_says_before_the_synthesis_that_nothing_builds_the_images(
    world: World, say: Say, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDK_DOCKER", "no-such-builder")
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, len(err.splitlines()), started) == (3, 1, [])
    assert "no-such-builder: is not on PATH, and images are built with it; install Docker, or name" in err
    assert say("deploy", str(REFERENCE), "--dry-run")[0] == 0, "a difference builds nothing"
    monkeypatch.setenv("CDK_DOCKER", sys.executable)
    assert say("deploy", str(REFERENCE))[0] == 0
    assert [words[2] for words in started] == ["diff", "deploy"]


@pytest.mark.parametrize(
    ("options", "at_once"),
    [((), False), (("--", "--require-approval", "never"), True), (("--dry-run",), False)],
)
def test_independent_stacks_are_deployed_at_once_where_the_cdk_asks_nothing(
    options: tuple[str, ...], at_once: bool, world: World, say: Say, started: list[list[str]]
) -> None:
    """With more than one stack at a time the CDK refuses to ask (ConcurrencyConflict)."""
    assert say("deploy", str(REFERENCE), *options)[0] == 0
    assert ("--concurrency" in started[0]) is at_once


def test_deploy_is_refused_while_somebody_measures_and_goes_on_once_nobody_does(
    world: World, say: Say, aws: Aws, started: list[list[str]]
) -> None:
    store, now = RunStore(world.experiment, aws), datetime.now(UTC)
    held = store.save(claimed(world.experiment, store, None, now=now), owner="elsewhere:1", step="compile")
    assert say("deploy", str(REFERENCE))[0] == 0, "no Job of a run is deployed"
    assert [words[2] for words in started] == ["deploy"]
    started.clear()
    held = store.save(held, step="benchmark-1")
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, started, len(err.splitlines())) == (1, [], 1)
    assert f"run {held.state.id}: elsewhere:1 drives it (last write " in err
    assert f"at step benchmark-1; begun {stamp(now)}); a deployment would set its arms to 0: wait" in err
    assert (
        "wait for its end (./trnspec status experiments/qwen3-32b.yaml), or interrupt it (Ctrl-C), deploy and run it again"
        in err
    )
    assert say("deploy", str(REFERENCE), "--dry-run")[0] == 0, "a difference changes nothing"
    held = store.save(held, renewed=stamp(now - LEASE))
    assert say("deploy", str(REFERENCE))[0] == 0, "who has been silent for so long is gone"
    store.save(held, renewed=stamp(now), owner="")
    assert say("deploy", str(REFERENCE))[0] == 0, "interrupted"
    assert [words[2] for words in started] == ["diff", "deploy", "deploy"]


def test_a_first_deployment_that_failed_is_repeated_by_who_may_deploy_and_nothing_else_loses_its_protection(
    world: World, aws: Aws, say: Say, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CDK protects a stack before it makes it, and cannot delete a protected one that failed."""
    shared_client("cloudformation").delete_stack(StackName="qwen3-32b-storage")  # as the fixture made it
    make_stacks("qwen3-32b", "network", "storage", "cluster", protected=("network", "storage", "cluster"))
    states = {"qwen3-32b-network": "ROLLBACK_COMPLETE", "qwen3-32b-cluster": "ROLLBACK_COMPLETE"}
    found = cloudformation.deployed(world.experiment, aws)
    failed = tuple(replace(one, status=states.get(one.name, one.status)) for one in found)
    monkeypatch.setattr(cloudformation, "deployed", lambda *_: failed)
    assert say("deploy", str(REFERENCE))[0] == 0
    assert protected() == {"network": True, "storage": True, "cluster": False}
    assert [words[2] for words in started] == ["deploy"]


def _lower(driver: Driver, when: Callable[[dict[str, Any]], bool], *, job: str) -> None:
    """What a deployment applies to the arms, once a Job of this name is so."""

    def act() -> None:
        if any(map(when, driver.jobs(job))):
            driver.world.on_tick.clear()
            for arm in driver.world.api.of("deployments"):
                arm["spec"]["replicas"] = 0

    driver.world.on_tick.append(act)


@pytest.mark.parametrize("done", [False, True], ids=["under load", "between the last look and the end"])
def test_a_run_whose_arms_were_lowered_under_load_fails_and_can_be_gone_on_with(
    driver: Driver, done: bool
) -> None:
    _lower(driver, lambda job: bool(job.get("status")) is done, job="qwen-llmperf-")
    line = driver.line()
    assert line.startswith("deployment qwen-vllm: has 0 replicas, and this run set 1: a deployment or")
    assert "run this again to go on" in line
    assert (driver.world.nodes, driver.reports) == (0, []), "no answer is made of a load without servers"
    assert driver.said[-1].endswith("stopped at benchmark-1; no Trn2 node bills; run it again to go on")
    assert driver.jobs("qwen-llmperf-") == [], "or the next run would take it for complete"
    driver.run()
    assert (driver.out / "summary.json").exists()


def test_a_run_whose_arms_are_lowered_while_they_load_does_not_wait_for_them(driver: Driver) -> None:
    begun, arms = driver.clock.now(), driver.world.api.of("deployments")
    _lower(driver, lambda _: all(arm["spec"]["replicas"] for arm in arms), job="")
    assert "has 0 replicas, and this run set 1" in driver.line()
    assert "stopped at arms-1" in driver.said[-1]
    assert (driver.clock.now() - begun).total_seconds() < 1800


def test_a_second_deployment_in_the_middle_of_fetching_disturbs_no_job_and_the_next_run_is_of_it(
    driver: Driver,
) -> None:
    at = list[str]()

    def deploy() -> None:
        if not at and any(not job.get("status") for job in driver.jobs("fetch-")):
            at.extend(job["metadata"]["name"] for job in driver.jobs("fetch-"))
            driver.redeploy()

    driver.world.on_tick.append(deploy)
    driver.run()
    assert at
    assert [job["metadata"]["name"] for job in driver.jobs("fetch-")] == at, "what works goes on"
    assert _images(driver, "compile-") == _images(driver, "qwen-llmperf-") == {"registry.example/tools:2"}
    driver.clock.time += timedelta(days=1)
    driver.run()
    assert driver.jobs("fetch-") == [], "weights are there, whatever fetched them"
    assert len(driver.jobs("compile-")) == 2
    assert len(driver.jobs("qwen-llmperf-")) == 2, "a second run measures again"
    assert (len(driver.artifacts()), driver.world.nodes) == (2, 0)


def test_a_run_that_is_killed_while_it_fetches_goes_on_after_a_deployment_with_jobs_of_the_new_image(
    driver: Driver,
) -> None:
    def kill() -> None:
        if driver.jobs("fetch-"):
            raise KeyboardInterrupt

    driver.world.on_tick.append(kill)
    with pytest.raises(KeyboardInterrupt):
        driver.run()
    driver.world.on_tick.clear()
    driver.redeploy()
    driver.run()
    assert _images(driver, "fetch-") == {"registry.example/tools:2"}
    assert len(driver.jobs("fetch-")) == len(driver.world.experiment.weights)


def _images(driver: Driver, prefix: str) -> set[str]:
    return {job["spec"]["template"]["spec"]["containers"][0]["image"] for job in driver.jobs(prefix)}


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
def test_a_job_that_ended_without_a_marker_is_removed_and_created_again(driver: Driver, ended: str) -> None:
    driver.run()
    for bucket in ("checkpoints", "artifacts"):
        for key in driver.world.stored(bucket):
            driver.world.store(bucket, f"away/{key}", {})
            driver.aws.client("s3").delete_object(Bucket=_bucket(driver, bucket), Key=key)
    before = {job["metadata"]["name"]: job for job in (*driver.jobs("fetch-"), *driver.jobs("compile-"))}
    for job in before.values():
        job["status"] = {"conditions": [{"type": ended, "status": "True"}]}
    driver.clock.time += timedelta(days=1)
    driver.run()
    after = {job["metadata"]["name"]: job for job in (*driver.jobs("fetch-"), *driver.jobs("compile-"))}
    assert before.keys() == after.keys()
    assert all(after[name] is not job for name, job in before.items())
    assert sum(not key.startswith("away/") for key in driver.artifacts()) == 2


def _bucket(driver: Driver, purpose: str) -> str:
    return naming.bucket(driver.world.experiment, purpose, driver.aws.account)
