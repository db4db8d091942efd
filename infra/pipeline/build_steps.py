"""What the pipeline runs, as text. Pure.

Checks, synthesis and reviews run in the pipeline's own builds; what talks to a cluster runs inside its VPC, in a build project
of the stage's own account that the pipeline only starts and waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiment.naming import bucket
from infra.pipeline.pipeline_file import (
    AROUND_MINUTES,
    CLEAR_ROLE,
    PipelineConfiguration,
    StageConfiguration,
)

PREPARE = ("chmod +x trnspec .ci/run lab/aws/docker_stand_in scripts/*",)
"""CodePipeline's archive of a GitHub repository keeps no permissions
(https://docs.aws.amazon.com/codepipeline/latest/userguide/troubleshooting.html#troubleshooting-file-permissions)."""
PREPARE_STAGE = ("chmod +x trnspec scripts/*",)
"""The same for what a stage's projects get."""
_DELIVER = ".venv/bin/python -m operations.delivery"
CHECKS = ("./scripts/test",)
CLI_FOLDER, PUBLISH_FOLDER = "cli", "publish"
"""In the cloud assembly: lock files of what later builds install, which get the assembly and nothing of the repository."""
SYNTH = (
    "scripts/setup",
    ".venv/bin/npx cdk synth --quiet --app '.venv/bin/python pipeline.py'",
    f"mkdir -p cdk.out/{CLI_FOLDER} && cp package.json package-lock.json cdk.out/{CLI_FOLDER}/",
    f"cp -R infra/pipeline/publish cdk.out/{PUBLISH_FOLDER}",
)
PULL_REQUEST = (
    *CHECKS,
    # Findings of the review are for its readers; the build fails only when the review itself fails.
    './trnspec review "origin/${CODEBUILD_WEBHOOK_BASE_REF#refs/heads/}" || test $? -eq 1',
)
RUNTIMES = {"runtime-versions": {"python": "3.11", "nodejs": "22"}}
"""Of the image STANDARD_7_0: the Python that the tests ran with, and Node for what CDK Pipelines does outside the
repository; inside it Node comes with pip."""


def build_spec(commands: Sequence[str], *, install: Sequence[str] = ()) -> dict[str, Any]:
    """As CodeBuild takes it."""
    prepared = {"commands": list(install)} if install else {}
    return {
        "version": "0.2",
        "phases": {"install": {**RUNTIMES, **prepared}, "build": {"commands": list(commands)}},
    }


@dataclass(frozen=True, kw_only=True)
class ClusterStep:
    """Something that a stage does inside its VPC."""

    name: str
    commands: tuple[str, ...]
    minutes: int
    starts_nodes: bool
    """Whether it may set the Trn2 group to more than 0."""

    @property
    def waiting_minutes(self) -> int:
        """Of the pipeline's build that starts this one and waits for it."""
        return self.minutes + AROUND_MINUTES


def dev_steps(stage: StageConfiguration) -> tuple[ClusterStep, ...]:
    """After the deployment, without a Trn2 node."""
    return (_smoke(stage),)


def prod_steps(configuration: PipelineConfiguration) -> tuple[ClusterStep, ...]:
    """After the approval and the deployment, in order."""
    stage, hours = configuration.prod, configuration.compile_hours
    compilation = ClusterStep(
        name="compile",
        commands=(f"{_DELIVER} compile {stage.path} --account {stage.account} --hours {hours}",),
        minutes=hours * 60,
        starts_nodes=True,
    )
    measured = (_benchmark(stage, configuration.baseline_run),) if configuration.benchmark else ()
    return (compilation, _smoke(stage), *measured)


def start_command(stage: StageConfiguration, step: ClusterStep) -> str:
    """For the pipeline's own account: start the project and wait for it."""
    return (
        f"{_DELIVER} start {project_name(stage, step)} --region {stage.experiment.cluster.region} "
        f"--role arn:aws:iam::{stage.account}:role/{stage.starter_role} --minutes {step.minutes}"
    )


def clear_command(stage: StageConfiguration) -> str:
    """For the pipeline's own account, before it deploys: delete the stage's stacks that are empty."""
    return f"{_DELIVER} clear {stage.path} --role {clear_role(stage)}"


def clear_role(stage: StageConfiguration) -> str:
    """ARN of the role that may delete the stage's stacks."""
    return f"arn:aws:iam::{stage.account}:role/{CLEAR_ROLE}"


def project_name(stage: StageConfiguration, step: ClusterStep) -> str:
    """CodeBuild project in the stage's account."""
    return f"{stage.experiment.name}-{step.name}"


def _smoke(stage: StageConfiguration) -> ClusterStep:
    return ClusterStep(
        name="smoke",
        commands=(f"{_DELIVER} smoke {stage.path} --account {stage.account}",),
        minutes=30,
        starts_nodes=False,
    )


def _benchmark(stage: StageConfiguration, baseline_run: str | None) -> ClusterStep:
    """The gate reads both runs from the bucket of results."""
    results = f"s3://{bucket(stage.experiment, 'results', stage.account)}/runs"
    gate = (
        f"aws s3 cp --only-show-errors --recursive {results}/{baseline_run} results/baseline",
        ".venv/bin/python -m benchmark gate results/run --baseline results/baseline",
    )
    return ClusterStep(
        name="benchmark",
        commands=(
            f"./trnspec run {stage.path} --account {stage.account} --hours 4 --out results/run",
            *(gate if baseline_run else ()),
        ),
        minutes=5 * 60,
        starts_nodes=True,
    )
