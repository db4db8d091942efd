"""Each way in which AWS refuses is one line with its remedy; what an experiment has in an account: its stacks, wherever a changed
file left them, and its artifacts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions as faults

from infra.deployment_file import KEYS
from tests.conftest import ROOT
from tests.hostile.foreign import BODIES, Foreign, in_place_of
from tests.operations.api_server import ApiServer
from tests.operations.clients import REGION, make_stacks, shared_client, stack_names
from tests.operations.conftest import Say
from tests.operations.enforcement import Enforcement, operator
from tests.operations.world import World
from trnspec.experiment import Experiment, load
from trnspec.experiment.model import Network
from trnspec.experiment.naming import artifact_path, bucket
from trnspec.operations.cloud import cloudformation, experiment_resources
from trnspec.operations.cloud.aws import Aws, AwsError, translate
from trnspec.operations.cloud.cloudformation import deploy_command

EXPIRED = "the credentials have expired; log in again"
UNKNOWN = "AWS does not know these credentials"
THROTTLED = "AWS throttles the account, also after several tries"
ABSENT = "no AWS credentials on this machine"
LOG_IN = "run `aws sso login` again"
UNREACHED = "the endpoint cannot be reached"
REFUSALS = {
    "ExpiredToken": EXPIRED,
    "RequestExpired": EXPIRED,
    "UnrecognizedClientException": UNKNOWN,
    "AuthFailure": UNKNOWN,
    "ThrottlingException": THROTTLED,
    "RequestLimitExceeded": THROTTLED,
    "OptInRequired": "the account does not have this region; enable it, or change cluster.region",
    "ServiceUnavailable": "AWS failed (ServiceUnavailable); wait a minute",
    "InvalidParameterException": "InvalidParameterException: no such thing",
    "AccessDenied": "let the caller do eks:DescribeCluster",
}
FAULTS: list[tuple[Exception, str]] = [
    (faults.NoCredentialsError(), f"{ABSENT}; run `aws sso login`"),
    (faults.PartialCredentialsError(provider="env", cred_var="key"), ABSENT),
    (faults.ProfileNotFound(profile="mine"), "set AWS_PROFILE to one of ~/.aws/config"),
    (faults.UnauthorizedSSOTokenError(), LOG_IN),
    (faults.TokenRetrievalError(provider="sso", error_msg="old"), LOG_IN),
    (faults.EndpointConnectionError(endpoint_url="https://x"), UNREACHED),
    (faults.ConnectTimeoutError(endpoint_url="https://x"), UNREACHED),
    (faults.ProxyConnectionError(proxy_url="http://p"), "check cluster.region, network and proxy"),
    (faults.SSLError(endpoint_url="https://x", error="cert"), UNREACHED),
    (faults.InvalidRegionError(region_name="x y"), "set cluster.region of the experiment"),
    (faults.ParamValidationError(report="bad"), "fix what it names"),
]


def _refused(code: str, message: str = "no such thing") -> AwsError:
    error = faults.ClientError({"Error": {"Code": code, "Message": message}}, "DescribeCluster")
    return translate(error, action="eks:DescribeCluster", region="us-east-2")


def test_a_refusal_or_a_fault_of_the_way_there_is_one_line_with_what_to_do() -> None:
    for code, says in REFUSALS.items():
        error = _refused(code)
        assert str(error).startswith("eks:DescribeCluster in us-east-2: ")
        assert (error.code, error.exit_code, says in str(error)) == (code, 3, True), error
    for fault, says in FAULTS:
        line = str(translate(fault, action="sts:GetCallerIdentity", region="us-east-2"))
        assert (says in line, "\n" in line) == (True, False), line
    page = str(_refused("407", "<!doctype html> <html lang=en> <h1>Log in</h1>"))
    assert page.endswith("a page answers with HTTP 407, not AWS; check AWS_ENDPOINT_URL, network and proxy")
    assert len(str(_refused("SomeException", "x" * 5000))) < 400
    who = "User: arn:aws:iam::111122223333:user/me is not authorized to perform: "
    denied = str(_refused("AccessDeniedException", f"{who}iam:PassRole on resource: role/x\nbecause"))
    assert "let the caller do iam:PassRole on role/x, or use" in denied


def test_calls_and_pages_raise_nothing_else(account: None) -> None:
    calls: Any = Aws("us-east-2").client("eks")
    with pytest.raises(AwsError) as caught:
        calls.describe_cluster(name="none")
    assert caught.value.code == "ResourceNotFoundException"
    retried = {"mode": "standard", "total_max_attempts": 8}
    assert calls._client.meta.config.retries == retried, "throttling, before it is told"
    stacks = Aws("us-east-2").client("cloudformation")
    with pytest.raises(AwsError, match="cloudformation:DescribeStackEvents"):
        list(stacks.paginate("describe_stack_events", "StackEvents", StackName="none"))


CALLS = {
    "cloudformation": "describe_stacks",
    "cloudwatch": "describe_alarms",
    "ec2": "describe_regions",
    "eks": "list_clusters",
    "s3": "list_buckets",
    "scheduler": "list_schedules",
    "sts": "get_caller_identity",
}
"""One of each protocol."""


@pytest.mark.parametrize("service", CALLS)
def test_no_page_with_status_200_is_taken_for_an_answer_of_aws(service: str, account: None) -> None:
    calls = Aws(REGION, make_client=shared_client).client(service)
    for kind, body in BODIES.items():
        with in_place_of(Foreign(body)), pytest.raises(AwsError) as caught:
            getattr(calls, CALLS[service])()
        says = "s3:ListBuckets" if service == "s3" else "unexpected answer, not from AWS"
        assert (says in str(caught.value), str(caught.value).isprintable()) == (True, True), kind


SAYING = [path for room in ("src/trnspec", "infra", "cdk8s_charts") for path in (ROOT / room).rglob("*.py")]
ON_AWS = ("deploy", "kubectl", "nodes", "preflight", "render", "run", "status", "teardown", "verify")
GUIDES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("file", ["qwen3-32b-today.yaml", "llama-3.3-70b.yaml"])
def test_a_command_names_the_file_and_not_the_experiment(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load(ROOT / "experiments" / file)
    monkeypatch.chdir(ROOT)
    assert f"{experiment.name}.yaml" != file
    assert deploy_command(experiment) == f"./trnspec deploy experiments/{file}"
    monkeypatch.chdir("/")
    assert experiment.file == str(ROOT / "experiments" / file).removeprefix("/")


def test_every_printed_command_names_its_experiment() -> None:
    """Without a file a verb takes the reference experiment, so a pasted remedy would act on other nodes than those it is about."""
    for path in (ROOT / "src/trnspec/operations").rglob("*.*"):
        if path.suffix in (".py", ".yaml", ".jinja"):
            text = re.sub(r'"""(?s:.)*?"""', "", path.read_text(encoding="utf-8"))
            bare = rf"\./trnspec ({'|'.join(ON_AWS)})\b(?! \{{| FILE| --name| --dry-run)"
            assert not re.findall(bare, text), path


def test_every_remedy_and_guide_gives_the_one_command_and_no_option_that_lasts() -> None:
    for path in SAYING:
        text = path.read_text(encoding="utf-8")
        assert not re.search("npx cdk deploy(?! --app '.venv/bin/python pipeline.py')", text), path
        assert not re.search(rf"with -c ({'|'.join(KEYS)})|-c ({'|'.join(KEYS)})=<", text), path
    for path in GUIDES:
        assert not re.search(rf"-c ({'|'.join(KEYS)})=", path.read_text(encoding="utf-8")), path


OTHER = "ap-southeast-4"


@pytest.fixture
def aws(account: None, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Aws:
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    return Aws(experiment.cluster.region)


def test_what_a_file_describes_even_a_broken_one_and_what_is_not_of_this_project_is_not_told(
    experiment: Experiment, aws: Aws, tmp_path: Path
) -> None:
    network = Network(vpc="vpc-0123456789abcdef0")
    within = replace(experiment, cluster=experiment.cluster.model_copy(update={"network": network}))

    def expected(one: Experiment) -> set[str]:
        return {stack.name for stack in cloudformation.expected(one, aws)}

    assert expected(experiment) - expected(within) == {"qwen3-32b-network"}
    make_stacks("qwen3-32b", "network", "cluster")
    assert "qwen3-32b-network" in expected(within), "of an earlier state of the file"
    make_stacks("qwen3-today", "network")  # another committed file's
    make_stacks("theirs", "api", "cluster-of-mine")
    make_stacks("theirs", "cluster", tag="another")
    assert cloudformation.orphaned_stacks(experiment, aws) == ([], [])
    (tmp_path / "mine.yaml").write_text("name: being-written\nversion: 9\n", encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    for name in ("being-written", "broken"):
        make_stacks(name, "cluster", region=OTHER)
    (found,) = cloudformation.orphaned_stacks(experiment, aws, files=tmp_path)[0]
    assert found.experiment == "qwen3-today", "which no file of that folder describes"


def test_a_changed_name_or_region_is_found_with_the_way_to_remove_it(
    experiment: Experiment, aws: Aws
) -> None:
    changed = [("qwen3-32b", OTHER), ("renamed", OTHER), ("renamed", "us-east-2")]
    for name, region in changed:
        make_stacks(name, "cluster", "nodes", "run", region=region)
    found, untold = cloudformation.orphaned_stacks(experiment, aws)
    assert ([(one.experiment, one.region) for one in found], untold) == (changed, [])
    for one in found:
        name = one.experiment
        assert one.stacks == (f"{name}-cluster", f"{name}-nodes", f"{name}-run")
        assert f"./trnspec teardown --name {name} --region {one.region}" in one.finding().line()


def test_what_could_not_be_looked_at_is_told_and_the_own_region_is_looked_at(
    experiment: Experiment, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_regions() -> dict[str, list[str]]:
        raise AwsError("ec2:DescribeRegions: not allowed", code="UnauthorizedOperation")

    def no_stacks(there: Aws) -> dict[str, list[str]]:
        if there.region == OTHER:
            raise AwsError("cloudformation:DescribeStacks: not allowed", code="AccessDenied")
        return {}

    make_stacks("renamed", "cluster")
    regions = shared_client("ec2").describe_regions
    aws.client("ec2").__dict__["describe_regions"] = no_regions
    found, (line,) = cloudformation.orphaned_stacks(experiment, aws)
    assert [one.experiment for one in found] == ["renamed"]
    assert line.startswith("other regions: stacks that no file describes were not looked for (ec2:")
    aws.client("ec2").__dict__["describe_regions"] = regions
    monkeypatch.setattr(cloudformation, "by_experiment", no_stacks)
    (line,) = cloudformation.orphaned_stacks(experiment, aws)[1]
    assert line.startswith(f"{OTHER}: stacks that no file describes were not looked for (cloudformation:")
    enabled = [one for one in regions()["Regions"] if one["RegionName"] != OTHER]
    aws.client("ec2").__dict__["describe_regions"] = lambda: {"Regions": enabled}
    assert cloudformation.orphaned_stacks(experiment, aws) == ([], [])


@pytest.mark.slow
def test_status_names_them_and_teardown_removes_them_and_nothing_else(world: World, say: Say) -> None:
    make_stacks("renamed", "cluster", "nodes", region=OTHER)
    make_stacks("qwen3-32b", "cluster")
    code, out, err = say("status")
    assert (code, "no file" in out) == (1, True)
    removal = "./trnspec teardown --name renamed --region ap-southeast-4"
    assert removal in err
    assert max(len(line) for line in out.splitlines()) <= 100
    code, _, err = say("teardown", "--name", "renamed")
    assert (code, "give both" in err) == (2, True)
    make_stacks("renamed", "cluster")
    code, out, _ = say(*removal.split()[1:], "--confirm", "renamed")
    assert (code, "2 of 2 stacks deleted" in out) == (0, True)
    assert {*stack_names(), *stack_names(OTHER)} == {"qwen3-32b-cluster", "renamed-cluster"}


Tagged = Callable[[], set[str]]


@pytest.fixture
def compiled(experiment: Experiment, aws: Aws) -> World:
    """Both arms compiled, and one artifact of long ago."""
    world = World(experiment, ApiServer())
    world.deploy()
    for folder in (*(artifact_path(arm) for arm in experiment.arms), "0ld"):
        for name in ("COMPLETE", "model.pt", "weights/tp0.safetensors"):
            world.store("artifacts", f"{folder}/{name}", {})
    return world


@pytest.fixture
def tagged(compiled: World, aws: Aws) -> Tagged:
    """Objects that the lifecycle rule lets go."""

    def found() -> set[str]:
        s3, name = compiled.client("s3"), bucket(compiled.experiment, "artifacts", aws.account)
        wanted = {"Key": "lifecycle", "Value": "stale"}  # as buckets carry it since their first deployment
        return {
            key
            for key in compiled.stored("artifacts")
            if wanted in s3.get_object_tagging(Bucket=name, Key=key)["TagSet"]
        }

    return found


@pytest.fixture
def as_run(enforcement: Enforcement) -> Iterator[None]:
    """Who calls a module that several verbs share."""
    with enforcement.acting_as(operator("run")):
        yield


@pytest.mark.usefixtures("as_run")
def test_what_no_arm_has_is_tagged_wholly_and_freed_again(compiled: World, aws: Aws, tagged: Tagged) -> None:
    for _ in range(2):
        assert experiment_resources.mark(compiled.experiment, aws) == ["0ld"]
        assert tagged() == {"0ld/COMPLETE", "0ld/model.pt", "0ld/weights/tp0.safetensors"}
    treatment = artifact_path(compiled.experiment.arms[1])
    without = replace(compiled.experiment, arms=compiled.experiment.arms[:1])
    assert treatment in experiment_resources.mark(without, aws)
    assert experiment_resources.free(compiled.experiment, aws) == [treatment]
    assert {key.split("/")[0] for key in tagged()} == {"0ld"}
    assert experiment_resources.free(compiled.experiment, aws) == []


@pytest.mark.usefixtures("as_run")
def test_a_folder_that_was_freed_half_is_freed_wholly_the_next_time(
    compiled: World, aws: Aws, tagged: Tagged, monkeypatch: pytest.MonkeyPatch
) -> None:
    treatment = artifact_path(compiled.experiment.arms[1])
    experiment_resources.mark(replace(compiled.experiment, arms=compiled.experiment.arms[:1]), aws)
    client, calls = aws.client("s3"), []
    free = client.delete_object_tagging

    def killed(**parameters: str) -> None:
        calls.append(parameters["Key"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        free(**parameters)

    with monkeypatch.context() as patch:
        patch.setitem(client.__dict__, "delete_object_tagging", killed)
        with pytest.raises(KeyboardInterrupt):
            experiment_resources.free(compiled.experiment, aws)
    assert f"{treatment}/COMPLETE" in tagged()
    experiment_resources.free(compiled.experiment, aws)
    assert {key.split("/")[0] for key in tagged()} == {"0ld"}
