"""The pipeline's steps and an operator's run from their command lines to the end, each call judged by the policies of who makes
it: of the build's role inside its boundary, of the pods, of the operator; and what they do in the cluster by their groups.

By evaluators of our own, `iam.py` and `Rbac`; not by AWS.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.eks.models import eks_backends

from cdk8s_charts.manifests import ManifestFile, read, texts, write
from infra.pipeline.pipeline_file import BOOTSTRAP, PipelineConfiguration, StageConfiguration
from infra.pipeline.pipeline_stack import start_command
from infra.pipeline.stage import NOTHING_MEASURED, ClusterStep, dev_steps, prod_steps
from tests.conftest import REFERENCE, ROOT
from tests.infra.conftest import KEY, changed
from tests.infra.pipeline.iam import committed, template_of
from tests.infra.templates import ACCOUNT, Deployment, resolved
from tests.operations import ready
from tests.operations.api_server import KINDS, ApiServer, DirectKubernetes
from tests.operations.builds import Builds
from tests.operations.clients import shared_client
from tests.operations.clock import FakeClock
from tests.operations.enforcement import OPERATOR, Caller, Enforcement, enforcing
from tests.operations.test_verify import PASSES, as_assumed, proved
from tests.operations.world import World
from trnspec.core.findings import Finding
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import ACTIVE_RUN, STEP, build_project, notices_topic, off_role_name
from trnspec.operations import delivery
from trnspec.operations.__main__ import main
from trnspec.operations.cloud import access
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running import active_run, in_build, launch
from trnspec.operations.running.remote import RunOptions, start_build

pytestmark = pytest.mark.slow

ROLE, RUNNER = "qwen3-32b-us-east-2-delivery", "qwen3-32b-us-east-2-run"


class Rbac:
    """What an access entry gives: the rendered roles that are bound to its groups."""

    def __init__(self, entry: dict[str, Any], files: tuple[ManifestFile, ...]) -> None:
        assert "AccessPolicies" not in entry
        objects = [item for file in files for item in file.objects]
        bound = {
            (item["roleRef"]["kind"], item["roleRef"]["name"]): item["metadata"].get("namespace")
            for item in objects
            if item["kind"] in ("RoleBinding", "ClusterRoleBinding")
            and {"Group"} == {one["kind"] for one in item["subjects"]}
            and {one["name"] for one in item["subjects"]} <= {*entry["KubernetesGroups"]}
        }
        self._rules = [
            (bound[key], rule)
            for item in objects
            if (key := (item["kind"], item["metadata"]["name"])) in bound
            for rule in item["rules"]
        ]
        self.refused: list[str] = []

    def __call__(self, verb: str, resource: str, namespace: str) -> bool:
        asked = {"apiGroups": KINDS[resource.partition("/")[0]][0], "resources": resource, "verbs": verb}
        for where, rule in self._rules:
            if where in (None, namespace) and all(value in rule[key] for key, value in asked.items()):
                return True
        self.refused.append(f"{verb} {resource} in {namespace!r}")
        return False


def caller(name: str, deployment: Deployment, *stacks: str, always: bool = False) -> Caller:
    """A role as it is deployed in moto's account, inside the committed boundary."""
    statements = deployment.rights(*stacks)[name]
    purposes = "Checkpoints|Artifacts|Results"
    text = json.dumps(resolved(statements))
    text = re.sub(
        rf"<[^<>]*Store({purposes})[^<>]*>",
        lambda found: f"arn:aws:s3:::qwen3-32b-{found[1].lower()}-{ACCOUNT}-us-east-2",
        text,
    )
    text = re.sub(r"<[^<>]*AlarmsKey[^<>]*>", KEY, text)
    for project in deployment.resources("AWS::CodeBuild::Project"):
        named = f"arn:aws:codebuild:us-east-2:{ACCOUNT}:project/{project.properties.get('Name')}"
        text = text.replace(f"<{project.logical_id}.Arn>", named)
    own: tuple[dict[str, Any], ...] = tuple(_here(json.loads(re.sub(r"<[^<>]*StoreKey[^<>]*>", KEY, text))))
    arn = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/{name}"
    boundary = tuple(_here(committed(BOOTSTRAP, "Boundary")))
    return Caller(arn, lambda _: own, boundary, key=_here(KEY), always=always)


def _here(value: Any) -> Any:
    """In moto's account, whichever one it was made for."""
    return json.loads(re.sub(f"{ACCOUNT}|222233334444|444455556666", DEFAULT_ACCOUNT_ID, json.dumps(value)))


class Account:
    """A deployed experiment in moto, and the commands that are called in it."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        patch: pytest.MonkeyPatch,
        files: tuple[ManifestFile, ...] = (),
    ) -> None:
        self.api, self.folder, self._patch = ApiServer(), folder, patch
        self.world = World(experiment, self.api, files=files)
        write(texts(experiment, self.world.deploy(), folder / "manifests"))
        self.world.client("sns").create_topic(Name=notices_topic(experiment))
        clock = FakeClock(self.world.tick)
        self.world.now = clock.now
        patch.setattr(Aws, "_boto_client", lambda aws, service: shared_client(service, aws.region))
        patch.setattr(access, "Kubernetes", lambda **how: DirectKubernetes(self.api, how["experiment"]))
        for module in (launch, delivery):
            patch.setattr(module, "Clock", lambda: clock)
        patch.setattr(launch, "_report", lambda _: None)
        patch.setattr(launch, "ActiveRun", partial(active_run.ActiveRun, verify=self._verify))
        self.builds = Builds(self.world, clock, folder / "out", patch)

    def _verify(self, experiment: Experiment, *_: Any, **__: Any) -> list[Finding]:
        """On nodes as they should be, which this world does not have, with the same rights."""
        there = as_assumed(experiment)
        there.rights = self.api.rights
        return proved(experiment, there, PASSES)

    def call(self, command: str, account: str) -> int:
        """A command of a build, in moto's account and with the manifests of this world."""
        words = shlex.split(command.replace(account, DEFAULT_ACCOUNT_ID))
        if words[:3] == ["aws", "s3", "cp"]:
            return self._copy(words[-2])
        begins = words.index("trnspec.operations.delivery") + 1
        return delivery.main([*words[begins:], "--manifests", str(self.folder / "manifests")])

    def build(self, step: ClusterStep, account: str) -> int:
        """What the project of a run does, as the pipeline starts it."""
        given = (
            f"{step.arguments.replace(account, DEFAULT_ACCOUNT_ID)} --manifests {self.folder / 'manifests'}"
        )
        with self._patch.context() as patch:
            patch.setenv("RUN_ARGUMENTS", given)
            patch.setenv("CODEBUILD_BUILD_ID", "qwen3-32b-run:0a1b")
            return in_build.main()

    def give_schedules(self, role: Caller) -> None:
        """Their role the statements of the templates, but those about the template's own queue: a run asks IAM about the role
        before nodes start."""
        named = [one for one in role.statements("us-east-2") if "<" not in json.dumps(one)]
        document = {"Version": "2012-10-17", "Statement": named}
        self.world.client("iam").put_role_policy(
            RoleName=off_role_name(self.world.experiment),
            PolicyName="off",
            PolicyDocument=json.dumps(document),
        )

    def _copy(self, address: str) -> int:
        """`aws s3 cp --recursive`."""
        name, _, prefix = address.removeprefix("s3://").partition("/")
        s3 = self.world.client("s3")
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=f"{prefix}/"):
            for entry in page.get("Contents", ()):
                s3.get_object(Bucket=name, Key=entry["Key"])
        return 0


@pytest.fixture
def enforcement(monkeypatch: pytest.MonkeyPatch) -> Iterator[Enforcement]:
    with (
        mock_aws(config={"core": {"mock_credentials": False, "reset_boto3_session": False}}),
        enforcing() as state,
    ):
        yield state


def act(
    steps: tuple[ClusterStep, ...],
    account: Account,
    stage: StageConfiguration,
    deployment: Deployment,
    state: Enforcement,
) -> list[int]:
    """Every command of these steps but the gate's, which asks nobody; returns the exit codes."""
    codes, refused = [], list[str]()
    for step in steps:
        part, name = ("run", RUNNER) if step.arguments else ("delivery", ROLE)
        entry = deployment.only("AWS::EKS::AccessEntry", part).properties
        account.api.rights = rbac = Rbac(entry, stage.files)
        role = caller(name, deployment, part)
        if step.arguments:
            with state.acting_as(role):
                codes.append(account.build(step, stage.settings.account))
        for command in (
            one.removeprefix(f"{NOTHING_MEASURED} || ") for one in step.commands if " gate " not in one
        ):
            always = command.startswith("aws ")
            with state.acting_as(Caller(**vars(role) | {"always": always})):
                codes.append(account.call(command, stage.settings.account))
        refused += rbac.refused
    assert (state.denied, refused) == ([], [])
    return codes


def pods(deployment: Deployment, state: Enforcement) -> Any:
    """Acts with the role that Pod Identity gives to a service account."""

    def acting(account: str) -> AbstractContextManager[None]:
        association = deployment.only("AWS::EKS::PodIdentityAssociation", "identity", ServiceAccount=account)
        role = association.properties["RoleArn"]["Fn::GetAtt"][0]
        return state.acting_as(caller(role, deployment, "identity", always=True))

    return acting


@pytest.mark.parametrize("stage_name", ["dev", "prod"])
def test_every_step_of_a_stage_is_green_with_the_rights_of_its_roles(
    stage_name: str,
    configuration: PipelineConfiguration,
    stages: dict[str, Deployment],
    enforcement: Enforcement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = getattr(configuration, stage_name)
    steps = prod_steps(configuration) if stage_name == "prod" else dev_steps(stage)
    account = Account(stage.experiment, tmp_path, monkeypatch)
    account.world.as_pod = pods(stages[stage_name], enforcement)
    account.give_schedules(caller(off_role_name(stage.experiment), stages[stage_name], "nodes"))
    account.world.store("results", f"runs/{configuration.settings.baseline_run}/summary.json", {})
    account.world.boots = 24  # six minutes, after which a run asks how the launch went
    account.world.refuse_launch()
    with ready.offering(stage.experiment):
        codes = act(steps, account, stage, stages[stage_name], enforcement)
    assert codes == [0] * (3 if stage_name == "prod" else 1)
    if stage_name == "prod":
        assert [step.name for step in steps] == ["smoke", "run"]
        assert (tmp_path / "out" / "summary.json").exists()
        assert list((tmp_path / "out" / "engines").iterdir()), "how the engines differ comes home"
        asked = {"eks:UpdateNodegroupConfig", "iam:PassRole", "kms:Decrypt", "s3:PutObject"}
        assert enforcement.allowed >= {*asked, "autoscaling:DescribeScalingActivities"}
        assert account.world.nodes == 0


def test_a_compilation_is_green_once_and_starts_no_node_again(
    configuration: PipelineConfiguration,
    stages: dict[str, Deployment],
    enforcement: Enforcement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiling = configuration.settings.model_copy(update={"run": "compile", "baseline_run": None})
    *_, step = prod_steps(replace(configuration, settings=compiling))
    account = Account(configuration.prod.experiment, tmp_path, monkeypatch)
    account.world.as_pod = pods(stages["prod"], enforcement)
    account.give_schedules(caller(off_role_name(configuration.prod.experiment), stages["prod"], "nodes"))
    for said in (
        "every artifact is complete\n",
        "every artifact is complete already, so no Trn2 node was started",
    ):
        assert act((step,), account, configuration.prod, stages["prod"], enforcement) == [0]
        assert said in capsys.readouterr().out
        assert (account.world.nodes, ACTIVE_RUN in account.world.stored("results")) == (0, False)


def test_the_smoke_step_asks_for_pins_zone_and_quotas_with_the_rights_of_its_role(
    configuration: PipelineConfiguration,
    stages: dict[str, Deployment],
    enforcement: Enforcement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stage = configuration.dev
    account = Account(stage.experiment, tmp_path, monkeypatch)
    with ready.offering(stage.experiment) as offers:
        offers.vcpus = 8
        assert act(dev_steps(stage), account, stage, stages["dev"], enforcement) == [0], "no node is due yet"
        assert "preflight, quota: 8 vCPUs" in capfd.readouterr().err
        offers.zone = "us-east-2c"
        assert act(dev_steps(stage), account, stage, stages["dev"], enforcement) == [1]
    assert "preflight, instance: trn2.48xlarge is offered in us-east-2c, not" in capfd.readouterr().out
    asked = {"ec2:DescribeImages", "eks:DescribeAddonVersions", "servicequotas:GetServiceQuota"}
    assert enforcement.allowed >= asked


def test_the_pipeline_starts_a_build_with_the_rights_of_its_step_and_of_the_role_that_it_takes_on(
    configuration: PipelineConfiguration,
    pipeline: Deployment,
    stages: dict[str, Deployment],
    enforcement: Enforcement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, step = configuration.prod, prod_steps(configuration)[-1]
    monkeypatch.setattr(Aws, "_boto_client", lambda aws, service: shared_client(service, aws.region))
    monkeypatch.setattr(delivery, "Clock", FakeClock)
    shared_client("codebuild").create_project(
        name=build_project(stage.experiment, step.name),
        source={"type": "S3", "location": "bucket/key"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
        serviceRole=f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/service-role/x",
    )
    starter = caller(stage.starter_role, stages["prod"], "delivery", "run", always=True)
    enforcement.roles[starter.arn] = starter
    words = shlex.split(start_command(stage, step).replace(stage.settings.account, DEFAULT_ACCOUNT_ID))
    with enforcement.acting_as(caller(configuration.caller_role(stage), pipeline, always=True)):
        code = delivery.main(words[words.index("start") :])
    assert (code, enforcement.denied) == (0, [])
    assert enforcement.allowed == {"sts:AssumeRole", "codebuild:StartBuild", "codebuild:BatchGetBuilds"}


def test_a_run_whose_node_group_was_replaced_ends_with_the_line_that_names_the_other(
    configuration: PipelineConfiguration,
    stages: dict[str, Deployment],
    enforcement: Enforcement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not with a right that is missing."""
    stage = configuration.prod
    account = Account(stage.experiment, tmp_path, monkeypatch)
    groups = eks_backends[DEFAULT_ACCOUNT_ID]["us-east-2"].clusters[stage.experiment.name].nodegroups
    standing = groups.pop(account.world.group.nodegroup_name)
    standing.nodegroup_name = "qwen3-32b-trn2-b-spot"
    groups[standing.nodegroup_name] = standing
    monkeypatch.setattr(World, "group", standing)
    *_, step = prod_steps(configuration)
    run = replace(step, commands=())  # a build ends at its first command that fails
    assert act((run,), account, stage, stages["prod"], enforcement) == [1]
    assert (
        "node group qwen3-32b-trn2-b-spot: exists, and the experiment now describes"
        in capsys.readouterr().err
    )


def operator(*verbs: str) -> Caller:
    """Somebody with the committed policies of these verbs, for the names that they have by default."""
    here = {"AWS__AccountId": DEFAULT_ACCOUNT_ID}
    statements = tuple(
        statement
        for name, policy in template_of(OPERATOR)["Resources"].items()
        if {*verbs} & {*policy["Metadata"]["Verbs"]}
        for statement in committed(OPERATOR, name, **here)
    )
    return Caller(f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/operator", lambda _: statements)


def test_an_operator_who_may_only_start_builds_comes_from_a_deployment_to_the_answer_and_reaches_no_node(
    configuration: PipelineConfiguration,
    stages: dict[str, Deployment],
    enforcement: Enforcement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build with the rights of its role, its pods with theirs; the operator with one policy."""
    stage, deployed = configuration.prod, stages["prod"]
    account = Account(stage.experiment, tmp_path, monkeypatch, read(stage.experiment, ROOT / "manifests"))
    account.world.as_pod = pods(deployed, enforcement)
    account.give_schedules(caller(off_role_name(stage.experiment), deployed, "nodes"))
    entry = deployed.only("AWS::EKS::AccessEntry", "run").properties
    account.api.rights = rbac = Rbac(entry, stage.files)
    role = caller(RUNNER, deployed, "run")
    account.builds.as_build = lambda: enforcement.acting_as(role)
    here = {"AWS__AccountId": DEFAULT_ACCOUNT_ID}
    alone = Caller(
        f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/alice",
        lambda _: tuple(committed(OPERATOR, "Remote", **here)),
    )
    typed = ["run", str(REFERENCE), "--remote", f"--out={tmp_path / 'home'}"]
    with enforcement.acting_as(alone):
        assert main(typed) == 0
        assert main([*typed, "--fetch"]) == 0
        account.builds.stuck = True
        start_build(stage.experiment, Aws("us-east-2"), RunOptions(path=REFERENCE))
        assert main([*typed, "--stop"]) == 0
    assert (enforcement.denied, rbac.refused, account.world.nodes) == ([], [], 0)
    assert (tmp_path / "home" / "summary.json").exists()
    asked = {"codebuild:StartBuild", "codebuild:StopBuild", "logs:GetLogEvents", "sns:Publish"}
    assert enforcement.allowed >= {*asked, "eks:UpdateNodegroupConfig"}
    with enforcement.acting_as(alone):
        assert main(["run", str(REFERENCE)]) == 3, "nothing goes from here"
    assert (len(enforcement.denied), account.world.nodes) == (1, 0)


@pytest.mark.parametrize(
    ("name", "codes"),
    [("qwen3-32b", {"run": 0, "status": 0, "nodes": 0}), ("other", {"status": 3, "run": 3, "nodes": 3})],
)
def test_an_operator_runs_the_experiments_that_the_policies_name_and_no_other(
    name: str,
    codes: dict[str, int],
    enforcement: Enforcement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = changed(load(REFERENCE), name)
    Account(experiment, tmp_path, monkeypatch)
    for module in ("nodes_command", "running.launch", "status"):
        monkeypatch.setattr(f"trnspec.operations.{module}.load", lambda _: experiment)
    for verb, code in codes.items():
        out = [f"--out={tmp_path / 'out'}", f"--manifests={tmp_path / 'manifests'}"] if verb == "run" else []
        with enforcement.acting_as(operator(verb)):
            assert main([verb, str(REFERENCE), *(["0"] if verb == "nodes" else out)]) == code, verb
    assert bool(enforcement.denied) is (name == "other")
    assert (tmp_path / "out" / "summary.json").exists() is (name != "other")


def test_an_operator_runs_through_a_second_deployment_and_again_after_it(
    enforcement: Enforcement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(load(REFERENCE), tmp_path, monkeypatch)
    world, fetching = account.world, list[str]()

    def deploy() -> None:
        at_work = [job["metadata"]["name"] for job in account.api.of("jobs") if not job.get("status")]
        if not fetching and any(name.startswith("fetch-") for name in at_work):
            fetching.extend(at_work)
            world.image = "registry.example/tools:2"
            world.apply()

    def images(step: str) -> list[str]:
        jobs = (job for job in account.api.of("jobs") if job["metadata"]["labels"][STEP] == step)
        return [job["spec"]["template"]["spec"]["containers"][0]["image"] for job in jobs]

    world.on_tick.append(deploy)
    for number, fetched in ((1, ["registry.example/tools:1"] * len(world.experiment.weights)), (2, [])):
        out = tmp_path / f"out-{number}"
        with enforcement.acting_as(operator("run")):
            assert main(["run", str(REFERENCE), f"--out={out}", f"--manifests={tmp_path / 'manifests'}"]) == 0
        assert (out / "summary.json").exists()
        assert images("fetch") == fetched, "what worked went on, and then nothing was left to fetch"
        assert images("compile") == ["registry.example/tools:2"] * 2
        assert images("load") == ["registry.example/tools:2"] * number, "each run measures"
    assert (bool(fetching), enforcement.denied, world.nodes) == (True, [], 0)
