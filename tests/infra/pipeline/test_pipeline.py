"""What the pipeline does, in which order, and what it never does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import botocore.session
import pytest

from infra.pipeline.pipeline_file import MAX_HOURS, PipelineConfiguration
from infra.pipeline.pipeline_stack import BY_HAND, CDK_ASSETS
from infra.pipeline.stage import ClusterStep, dev_steps, prod_steps
from tests.infra.pipeline.conftest import PROD_KEY
from tests.infra.templates import Deployment, Properties, json_of, listed_data
from trnspec.core.checkout import ROOT
from trnspec.operations import delivery

Stages = dict[str, Deployment]
PROJECT = "AWS::CodeBuild::Project"


def actions(pipeline: Deployment) -> dict[str, list[str]]:
    """Names of each stage's actions in the order in which they run."""
    return {
        stage["Name"]: [one["Name"] for one in sorted(stage["Actions"], key=lambda one: one["RunOrder"])]
        for stage in pipeline.only("AWS::CodePipeline::Pipeline").properties["Stages"]
    }


def project(pipeline: Deployment, part: str) -> Properties:
    (found,) = [one.properties for one in pipeline.resources(PROJECT) if part in one.logical_id]
    return found


def commands(project: Properties, phase: str = "build") -> list[str]:
    found: list[str] = json.loads(project["Source"]["BuildSpec"])["phases"][phase]["commands"]
    return found


def arguments(project: Properties) -> str:
    """Of `./trnspec run`, in a build that is given none."""
    variables = project["Environment"]["EnvironmentVariables"]
    return next(str(one["Value"]) for one in variables if one["Name"] == "RUN_ARGUMENTS")


def spec_of(project: Properties, assembly: Path) -> Properties:
    """The phases of a build, which for publishing are a file of the assembly."""
    text = project["Source"]["BuildSpec"]
    text = text if text.startswith("{") else (assembly / text).read_text(encoding="utf-8")
    phases: Properties = json.loads(text)["phases"]
    return phases


def test_what_is_pushed_runs_through_the_stages_in_order_and_executions_wait_for_each_other(
    pipeline: Deployment, stages: Stages, configuration: PipelineConfiguration
) -> None:
    properties, settings = pipeline.only("AWS::CodePipeline::Pipeline").properties, configuration.settings
    assert (properties["PipelineType"], properties["ExecutionMode"]) == ("V2", "QUEUED")
    (source,) = properties["Stages"][0]["Actions"]
    assert source["ActionTypeId"]["Provider"] == "CodeStarSourceConnection"
    named = [source["Configuration"][key] for key in ("ConnectionArn", "FullRepositoryId", "BranchName")]
    assert named == [settings.connection, settings.repository, settings.branch]
    order = actions(pipeline)
    assert list(order) == ["Source", "Build", "UpdatePipeline", "Assets", "dev", "prod"]
    assert order["Build"] == ["Checks", "Synth"]
    assert order["Assets"] == ["DockerAssets", "FileAssets"], "one build a kind publishes all"
    assert commands(project(pipeline, "Checks")) == ["./scripts/test"]
    dev, prod = order["dev"], order["prod"]
    deployed = max(place for place, name in enumerate(dev) if name.endswith(".Deploy"))
    assert "DevSmoke" in dev[deployed:], "everything is deployed, then tried"
    assert "Approve" not in dev
    assert "qwen3-32b-workloads.Deploy" in dev
    assert prod[0] == "Approve", "nothing happens before the approval"
    deployed = max(place for place, name in enumerate(prod) if name.endswith(".Deploy"))
    assert prod[deployed + 1 :] == ["ProdSmoke", "ProdRun"]
    run = stages["prod"].only(PROJECT, "run").properties
    assert arguments(run) == "experiments/qwen3-32b.yaml --hours 12"
    lines = commands(run)
    assert lines[0] == ".venv/bin/python -m trnspec.operations.running.in_build"
    assert "/runs/20260401T120000Z-0dc3e1ca " in lines[1]
    gate = ".venv/bin/python -m trnspec.benchmark gate results/run --baseline results/baseline"
    assert lines[2] == f"[ ! -e results/run/summary.json ] || {gate}"


def test_the_build_that_changes_the_pipeline_installs_from_a_lock_file_with_a_hash_for_every_package(
    pipeline: Deployment, tmp_path: Path
) -> None:
    found = project(pipeline, "SelfMutation")
    deploy = "cli/node_modules/.bin/cdk -a . deploy pipeline --require-approval=never --verbose"
    assert commands(found) == [deploy]
    assert commands(found, "install") == ["npm ci --ignore-scripts --no-audit --no-fund --prefix cli"]
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "cdk.out").mkdir()
    # What the Synth build hands on beside the assembly itself.
    subprocess.run(["sh", "-c", commands(project(pipeline, "Synth"))[-1]], cwd=tmp_path, check=True)
    wanted = json_of(tmp_path / "cdk.out/cli/package.json")
    lock = json_of(tmp_path / "cdk.out/cli/package-lock.json")["packages"]
    assert lock[""]["devDependencies"] == wanted["devDependencies"], (
        "the lock file is of another package.json"
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", lock["node_modules/aws-cdk"]["version"])
    # A bundled package is part of the archive whose hash is checked.
    packages = {name: one for name, one in lock.items() if name and not one.get("inBundle")}
    hashes = {name: str(one.get("integrity")) for name, one in packages.items()}
    assert [name for name, text in hashes.items() if not text.startswith("sha512-")] == []


def test_one_build_a_kind_publishes_every_asset_of_both_stages_and_only_that_of_images_is_privileged(
    pipeline: Deployment, assembly: Path, stages: Stages
) -> None:
    for build, kind in (("FileAsset", "files"), ("DockerAsset", "dockerImages")):
        found = project(pipeline, build)
        assert bool(found["Environment"].get("PrivilegedMode")) is (build == "DockerAsset"), "Docker needs it"
        wanted = {
            f"{asset}:{destination}"
            for stage in stages.values()
            for one in stage.assets.values()
            for asset, about in one.get(kind, {}).items()
            for destination in about["destinations"]
            if not about["source"].get("path", "").endswith(".template.json")  # which CloudFormation is given
        }
        called = [
            re.fullmatch(r'cdk-assets --path "(.+)" --verbose publish "(.+)"', line)
            for line in spec_of(found, assembly)["build"]["commands"]
        ]
        assert {one and one[2] for one in called} == wanted
        assert all(one and (assembly / one[1]).is_file() for one in called)


def test_every_build_names_its_runtimes_installs_what_is_pinned_and_calls_what_is_there(
    pipeline: Deployment, stages: Stages, assembly: Path
) -> None:
    delivering = [one for stage in stages.values() for one in stage.properties(PROJECT)]
    builds = [*pipeline.properties(PROJECT), *delivering]
    assert len(builds) > 8
    lines = []
    for build in builds:
        phases = spec_of(build, assembly)
        assert phases["install"]["runtime-versions"] == {"python": "3.11", "nodejs": "22"}
        lines += [line for phase in phases.values() for line in phase.get("commands", ())]
    for line in lines:
        assert not re.search("npm install|latest", line) or line == f"npm install -g cdk-assets@{CDK_ASSETS}"
        subprocess.run(["sh", "-n", "-c", line], check=True)
    words = {word.removeprefix("./") for line in lines for word in line.split()}
    scripts = {word for word in words if re.fullmatch(r"scripts/[^*]+|trnspec", word)}
    assert scripts == {"scripts/test", "scripts/setup", "trnspec"}
    assert all((ROOT / script).stat().st_mode & 0o100 for script in scripts)
    called = {line.split()[3] for line in lines if "trnspec.operations.delivery" in line}
    assert called == {"start", "smoke"} == set(delivery.VERBS)


@pytest.mark.parametrize("part", ["Checks", "Synth"])
def test_a_build_that_fails_says_how_a_commit_gets_out_that_needs_other_runtimes(
    part: str, pipeline: Deployment
) -> None:
    (line,) = commands(project(pipeline, part), "post_build")
    said = {}
    for succeeding in ("0", "1"):
        environment = {"CODEBUILD_BUILD_SUCCEEDING": succeeding}
        done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=True)
        said[succeeding] = done.stdout
    assert (said["1"], said["0"].count("\n")) == ("", 1)
    assert f"run {BY_HAND} (docs/pipeline.md)" in said["0"]
    assert f"`{BY_HAND}`" in (ROOT / "docs/pipeline.md").read_text(encoding="utf-8")


def test_what_git_has_as_a_program_is_made_one_again_after_the_archive_lost_it(
    pipeline: Deployment, stages: Stages, tmp_path: Path
) -> None:
    files = [one for name in (".ci", "scripts") for one in (ROOT / name).rglob("*")]
    files = [one for one in (ROOT / "trnspec", *files) if one.is_file() and one.stat().st_mode & 0o100]
    programs = [one.relative_to(ROOT) for one in files]
    assert len(programs) >= 6
    for part in ("Checks", "Synth", "DevSmoke", "ProdRun"):
        folder = tmp_path / part
        for program in programs:
            (folder / program).parent.mkdir(parents=True, exist_ok=True)
            (folder / program).touch(mode=0o644)
        for line in commands(project(pipeline, part), "install"):
            subprocess.run(["sh", "-c", line], cwd=folder, check=True)
        assert [one for one in programs if not (folder / one).stat().st_mode & 0o100] == []
    for one in stages["prod"].properties(PROJECT):
        assert commands(one, "install")[0] == "chmod +x trnspec scripts/*"


@pytest.mark.parametrize("hours", [1, MAX_HOURS])
def test_a_run_may_take_hours_in_both_accounts_as_codebuild_takes_them(
    pipeline: Deployment, stages: Stages, configuration: PipelineConfiguration, hours: int
) -> None:
    assert stages["prod"].only(PROJECT, "run").properties["TimeoutInMinutes"] == 36 * 60
    waiting = project(pipeline, "ProdRun")
    assert waiting["TimeoutInMinutes"] > 13 * 60, "longer than its nodes live"
    assert commands(waiting)[-1].endswith("--minutes 780")
    model = botocore.session.get_session().get_service_model("codebuild")
    settings = configuration.settings.model_copy(update={"hours": hours})
    limits = model.shape_for("BuildTimeOut").metadata
    for step in prod_steps(replace(configuration, settings=settings)):
        for minutes in (step.minutes, step.waiting_minutes):
            assert limits["min"] <= minutes <= limits["max"], step.name


def test_without_a_run_prod_starts_no_node_and_a_compilation_has_no_gate(
    configuration: PipelineConfiguration,
) -> None:
    def steps(run: str) -> tuple[ClusterStep, ...]:
        update = {"run": run, "baseline_run": None}
        return prod_steps(replace(configuration, settings=configuration.settings.model_copy(update=update)))

    assert steps("never") == dev_steps(configuration.prod)
    compiling = steps("compile")[-1]
    assert (compiling.commands, compiling.arguments[-26:]) == ((), "--hours 12 --until compile")


def test_builds_that_talk_to_a_cluster_are_in_private_subnets_and_dev_starts_no_trn2_node(
    stages: Stages, configuration: PipelineConfiguration
) -> None:
    for stage, steps in (("dev", dev_steps(configuration.dev)), ("prod", prod_steps(configuration))):
        projects = stages[stage].properties(PROJECT)
        assert {one["Name"] for one in projects} == {f"qwen3-32b-{step.name}" for step in steps}
        for one in projects:
            subnets = json.dumps(one["VpcConfig"]["Subnets"])
            assert ("private" in subnets, "public" in subnets) == (True, False)
        for part in ("delivery", "run")[: len(steps)]:
            group = stages[stage].only("AWS::EC2::SecurityGroup", part).properties
            assert not group.get("SecurityGroupIngress")
            assert [(rule["FromPort"], rule["ToPort"]) for rule in group["SecurityGroupEgress"]] == [
                (443, 443)
            ]
    nodes = stages["dev"].only("AWS::EKS::Nodegroup", "nodes").properties
    assert nodes["ScalingConfig"]["DesiredSize"] == 0


def test_a_stage_is_in_its_own_account_and_follows_its_wishes_and_looks_nothing_up(
    stages: Stages, configuration: PipelineConfiguration, assembly: Path
) -> None:
    for stage, kept in ((configuration.dev, (90, None)), (configuration.prod, (365, PROD_KEY))):
        found = stages[stage.name]
        groups = found.properties("AWS::Logs::LogGroup")
        assert len(groups) > 8
        assert {(group["RetentionInDays"], group.get("KmsKeyId")) for group in groups} == {kept}
        environments = {one["environment"] for one in found.artifacts.values()}
        assert environments == {f"aws://{stage.settings.account}/us-east-2"}
    assert PROD_KEY in str(stages["prod"].rights("run"))
    assert not [path for path in assembly.rglob("manifest.json") if "missing" in json_of(path)]


def test_every_role_carries_the_boundary(pipeline: Deployment, stages: Stages) -> None:
    roles = [role for one in (pipeline, *stages.values()) for role in one.properties("AWS::IAM::Role")]
    assert len(roles) > 30
    assert all("policy/speculation-boundary" in json.dumps(role["PermissionsBoundary"]) for role in roles)


def test_what_holds_data_keeps_its_logical_id_and_what_becomes_of_it(
    pipeline: Deployment, stages: Stages
) -> None:
    assert pipeline.data() == listed_data("pipeline")
    assert stages["dev"].data() == listed_data("experiment", "stage")
    measured = listed_data("experiment", "stage", "run")
    assert stages["prod"].data() == [line for line in measured if "::KMS::" not in line], "it names a key"
