"""What the pipeline does, in which order, and what it never does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from infra import ROOT
from infra.pipeline.build_steps import prod_steps
from infra.pipeline.pipeline_file import MOST_HOURS, PipelineConfiguration
from operations import delivery
from tests.infra.conftest import KEY
from tests.infra.pipeline.conftest import Template, of_type

Stages = dict[str, dict[str, Template]]


def actions(pipeline: Template) -> dict[str, list[str]]:
    """Names of each stage's actions in the order in which they run."""
    (properties,) = of_type(pipeline, "AWS::CodePipeline::Pipeline").values()
    return {
        stage["Name"]: [one["Name"] for one in sorted(stage["Actions"], key=lambda one: one["RunOrder"])]
        for stage in properties["Stages"]
    }


def project(pipeline: Template, part: str) -> dict[str, Any]:
    (found,) = [one for name, one in of_type(pipeline, "AWS::CodeBuild::Project").items() if part in name]
    return found


def commands(project: dict[str, Any], phase: str = "build") -> list[str]:
    spec = json.loads(project["Source"]["BuildSpec"])
    found: list[str] = spec["phases"][phase]["commands"]
    return found


def test_the_source_is_the_connection_and_executions_wait_for_each_other(
    pipeline: Template, configuration: PipelineConfiguration
) -> None:
    (properties,) = of_type(pipeline, "AWS::CodePipeline::Pipeline").values()
    assert (properties["PipelineType"], properties["ExecutionMode"]) == ("V2", "QUEUED")
    (source,) = properties["Stages"][0]["Actions"]
    assert source["ActionTypeId"]["Provider"] == "CodeStarSourceConnection"
    named = source["Configuration"]
    assert (named["ConnectionArn"], named["FullRepositoryId"], named["BranchName"]) == (
        configuration.connection,
        configuration.repository,
        configuration.branch,
    )


def test_each_stage_runs_its_actions_in_order(pipeline: Template) -> None:
    order = actions(pipeline)
    assert list(order) == ["Source", "Build", "UpdatePipeline", "Assets", "dev", "prod"]
    assert order["Build"] == ["Checks", "Synth"]
    assert commands(project(pipeline, "Checks")) == ["./scripts/test"]
    dev, prod = order["dev"], order["prod"]
    assert dev[-1] == "DevSmoke", "everything is deployed, then tried"
    assert "ApproveTrn2Nodes" not in dev
    assert "qwen3-32b-workloads.Deploy" in dev
    assert prod[0] == "ApproveTrn2Nodes", "nothing happens before the approval"
    assert prod[-3:] == ["ProdCompile", "ProdSmoke", "ProdBenchmark"]
    assert prod.index("qwen3-32b-nodes.Deploy") < prod.index("ProdCompile")


@pytest.fixture(scope="session")
def synthesized(pipeline: Template, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Synth build hands on beside the assembly itself, by its own commands."""
    folder = tmp_path_factory.mktemp("synth")
    shutil.copytree(ROOT / "infra/pipeline/publish", folder / "infra/pipeline/publish")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / name, folder)
    (folder / "cdk.out").mkdir()
    lines = commands(project(pipeline, "Synth"))
    for line in lines[lines.index(next(one for one in lines if "cdk synth" in one)) + 1 :]:
        subprocess.run(["sh", "-c", line], cwd=folder, check=True)
    return folder / "cdk.out"


@pytest.mark.parametrize(
    ("build", "program"), [("SelfMutation", "aws-cdk"), ("Assets", "@aws-cdk/cdk-assets-lib")]
)
def test_what_deploys_and_publishes_is_installed_from_a_lock_file_with_a_hash_for_every_package(
    pipeline: Template, synthesized: Path, build: str, program: str
) -> None:
    (line,) = commands(project(pipeline, build), "install")
    found = re.fullmatch(r"npm ci --ignore-scripts --no-audit --no-fund --prefix (\w+)", line)
    assert found, line
    wanted = json.loads((synthesized / found[1] / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((synthesized / found[1] / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for key in ("dependencies", "devDependencies"):
        assert lock[""].get(key) == wanted.get(key), "the lock file is of another package.json"
    assert re.fullmatch(r"\d+\.\d+\.\d+", lock[f"node_modules/{program}"]["version"])
    assert [
        name
        for name, package in lock.items()
        # a bundled package is part of the archive whose hash is checked
        if name and not package.get("inBundle") and not package.get("integrity", "").startswith("sha512-")
    ] == []


def test_deploying_and_publishing_run_what_was_installed(pipeline: Template, synthesized: Path) -> None:
    assert commands(project(pipeline, "SelfMutation")) == [
        "cli/node_modules/.bin/cdk -a . deploy pipeline --require-approval=never --verbose"
    ]
    assert actions(pipeline)["Assets"] == ["FileAssets"], "one build publishes all"
    found = project(pipeline, "Assets")
    assert commands(found) == ["node publish/publish_assets.js ."]
    assert not found["Environment"].get("PrivilegedMode")
    program = str(synthesized / "publish/publish_assets.js")
    subprocess.run([str(ROOT / "node_modules/.bin/node"), "--check", program], check=True, timeout=60)


def test_every_build_names_its_runtimes_installs_what_is_pinned_and_calls_what_is_there(
    pipeline: Template, stages: Stages
) -> None:
    templates = [pipeline, stages["dev"]["delivery"], stages["prod"]["delivery"]]
    builds = [one for each in templates for one in of_type(each, "AWS::CodeBuild::Project").values()]
    assert len(builds) > 8
    lines = []
    for build in builds:
        phases = json.loads(build["Source"]["BuildSpec"])["phases"]
        assert phases["install"]["runtime-versions"] == {"python": "3.11", "nodejs": "22"}
        assert not [
            line
            for line in phases["install"].get("commands", ())
            if "npm install" in line or "latest" in line
        ]
        lines += [line for phase in phases.values() for line in phase.get("commands", ())]
    for line in lines:
        subprocess.run(["sh", "-n", "-c", line], check=True)
    words = {word.removeprefix("./") for line in lines for word in line.split()}
    scripts = {
        word for word in words if (word.startswith("scripts/") and "*" not in word) or word == "trnspec"
    }
    assert {"scripts/test", "scripts/setup", "trnspec"} == scripts
    called = {tuple(line.split()[:4]) for line in lines if "operations.delivery" in line}
    assert {words[3] for words in called} == {"start", "smoke", "compile"} == set(delivery.VERBS)
    assert all((ROOT / script).stat().st_mode & 0o100 for script in scripts)


def test_what_git_has_as_a_program_is_made_one_again_after_the_archive_lost_it(
    pipeline: Template, stages: Stages, tmp_path: Path
) -> None:
    programs = [
        path.relative_to(ROOT)
        for path in (
            ROOT / "trnspec",
            *(one for f in (".ci", "lab", "scripts") for one in (ROOT / f).rglob("*")),
        )
        if path.is_file() and path.stat().st_mode & 0o100
    ]
    assert len(programs) > 15
    for program in programs:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text("")
    for part in ("Checks", "Synth", "DevSmoke", "ProdCompile"):
        for line in commands(project(pipeline, part), "install"):
            subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
        assert [one for one in programs if not (tmp_path / one).stat().st_mode & 0o100] == []
        for program in programs:
            (tmp_path / program).chmod(0o644)
    for one in of_type(stages["prod"]["delivery"], "AWS::CodeBuild::Project").values():
        assert commands(one, "install")[0] == "chmod +x trnspec scripts/*"


def test_compiling_may_take_hours_in_both_accounts(pipeline: Template, stages: Stages) -> None:
    minutes = of_type(stages["prod"]["delivery"], "AWS::CodeBuild::Project")
    inside = {one["Name"]: one["TimeoutInMinutes"] for one in minutes.values()}
    assert inside["qwen3-32b-compile"] == 8 * 60
    assert project(pipeline, "ProdCompile")["TimeoutInMinutes"] > inside["qwen3-32b-compile"]
    (line,) = [text for text in commands(project(pipeline, "ProdCompile")) if "deliver" in text]
    assert line.endswith("--minutes 480")


@pytest.mark.parametrize("hours", [1, MOST_HOURS])
def test_codebuild_takes_the_timeout_of_every_build_for_all_hours_that_are_accepted(
    configuration: PipelineConfiguration, hours: int
) -> None:
    model = botocore.session.get_session().get_service_model("codebuild")
    limits = model.shape_for("BuildTimeOut").metadata
    for step in prod_steps(replace(configuration, compile_hours=hours)):
        for minutes in (step.minutes, step.waiting_minutes):
            assert limits["min"] <= minutes <= limits["max"], step.name


def test_no_build_that_talks_to_a_cluster_stands_outside_its_private_subnets(stages: Stages) -> None:
    for stage, names in (("dev", {"smoke"}), ("prod", {"smoke", "compile", "benchmark"})):
        template = stages[stage]["delivery"]
        projects = of_type(template, "AWS::CodeBuild::Project")
        assert {one["Name"] for one in projects.values()} == {f"qwen3-32b-{name}" for name in names}
        for one in projects.values():
            subnets = json.dumps(one["VpcConfig"]["Subnets"])
            assert "private" in subnets
            assert "public" not in subnets
        (group,) = of_type(template, "AWS::EC2::SecurityGroup").values()
        assert not group.get("SecurityGroupIngress")
        assert [(rule["FromPort"], rule["ToPort"]) for rule in group["SecurityGroupEgress"]] == [(443, 443)]


def test_a_stage_follows_the_wishes_of_its_own_account(stages: Stages) -> None:
    for stage, kept in (("dev", (90, None)), ("prod", (365, KEY))):
        groups = [
            group
            for template in stages[stage].values()
            for group in of_type(template, "AWS::Logs::LogGroup").values()
        ]
        assert len(groups) > 8
        assert {(group["RetentionInDays"], group.get("KmsKeyId")) for group in groups} == {kept}
    role = json.dumps(of_type(stages["prod"]["deliveryrole"], "AWS::IAM::Policy"))
    assert KEY in role


def test_the_gate_compares_with_the_named_run_after_measuring(stages: Stages) -> None:
    projects = of_type(stages["prod"]["delivery"], "AWS::CodeBuild::Project")
    (benchmark,) = [one for one in projects.values() if one["Name"] == "qwen3-32b-benchmark"]
    lines = commands(benchmark)
    assert lines[0].startswith("./trnspec run experiments/qwen3-32b.yaml")
    assert "/runs/20260401T120000Z-0dc3e1ca " in lines[1]
    assert lines[2] == ".venv/bin/python -m benchmark gate results/run --baseline results/baseline"


def test_dev_starts_no_trn2_node_whatever_the_file_says(stages: Stages) -> None:
    sizes = [
        group["ScalingConfig"]["DesiredSize"]
        for group in of_type(stages["dev"]["nodes"], "AWS::EKS::Nodegroup").values()
    ]
    assert sizes == [0]


def test_every_stack_goes_to_the_account_of_its_stage(
    assembly: Path, configuration: PipelineConfiguration
) -> None:
    for stage in (configuration.dev, configuration.prod):
        manifest = json.loads((assembly / f"assembly-pipeline-{stage.name}" / "manifest.json").read_text())
        found = {
            one["environment"]
            for one in manifest["artifacts"].values()
            if one["type"] == "aws:cloudformation:stack"
        }
        assert found == {f"aws://{stage.account}/us-east-2"}
        assert "missing" not in manifest, "nothing is looked up"


def test_every_role_carries_the_boundary(pipeline: Template, stages: Stages) -> None:
    templates = [pipeline, *(template for stage in stages.values() for template in stage.values())]
    roles = [role for template in templates for role in of_type(template, "AWS::IAM::Role").values()]
    assert len(roles) > 30
    assert all("policy/speculation-boundary" in json.dumps(role["PermissionsBoundary"]) for role in roles)


def test_a_pull_request_waits_for_an_administrator_then_it_is_tested_and_reviewed(
    pipeline: Template, configuration: PipelineConfiguration
) -> None:
    found = project(pipeline, "PullRequests")
    assert commands(found)[0] == "./scripts/test"
    assert commands(found)[1].startswith(
        './trnspec review "origin/${CODEBUILD_WEBHOOK_BASE_REF#refs/heads/}"'
    )
    assert found["Source"]["Auth"] == {
        "Type": "CODECONNECTIONS",
        "Resource": configuration.pull_request_connection,
    }
    assert "GitCloneDepth" not in found["Source"], "the review reads the base from git"
    assert found["Triggers"]["PullRequestBuildPolicy"] == {
        "RequiresCommentApproval": "ALL_PULL_REQUESTS",
        "ApproverRoles": ["GITHUB_ADMIN"],
    }
    assert not found["Environment"].get("PrivilegedMode")
