"""What the pipeline runs, as text. Pure.

Checks, synthesis and the reviews run beside the code; whatever talks to a cluster runs inside its VPC, in a build project
of the stage's own account that the pipeline only starts and waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.naming import account_wide, bucket

if TYPE_CHECKING:
    from infra.pipeline.pipeline_file import PipelineConfiguration, StageConfiguration


PREPARE = ("chmod +x .ci/run lab/aws/docker_stand_in scripts/*",)
"""CodePipeline's archive of a GitHub repository keeps no permissions
(https://docs.aws.amazon.com/codepipeline/latest/userguide/troubleshooting.html#troubleshooting-file-permissions)."""
PREPARE_STAGE = ("chmod +x scripts/*",)
"""The same for what a stage's projects get."""
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
    # A finding of the review is for the people who read it; only a review that cannot be made fails the build.
    'scripts/review "origin/${CODEBUILD_WEBHOOK_BASE_REF#refs/heads/}" || test $? -eq 1',
)
RUNTIMES = {"phases": {"install": {"runtime-versions": {"python": "3.11", "nodejs": "22"}}}}
"""Of the image STANDARD_7_0: the Python that the tests ran with, and Node for what CDK Pipelines does outside the
repository; inside it Node comes with pip."""


MOST_MINUTES = 2160
"""Of one build: `TimeoutInMinutes` of https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-codebuild-project.html"""
_AROUND_MINUTES = 30
"""To set up, and for a queue before the project."""
MOST_HOURS = (MOST_MINUTES - _AROUND_MINUTES) // 60
"""Of a compilation: the build that waits for it lasts longer than the build that does it."""


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
        return self.minutes + _AROUND_MINUTES

    @property
    def build_spec(self) -> dict[str, Any]:
        """For the project in the stage's account."""
        return {
            "version": "0.2",
            "phases": {
                "install": {
                    **RUNTIMES["phases"]["install"],
                    "commands": [*PREPARE_STAGE, "scripts/setup"],
                },
                "build": {"commands": list(self.commands)},
            },
        }


def dev_steps(stage: StageConfiguration) -> tuple[ClusterStep, ...]:
    """After the deployment, without a Trn2 node."""
    return (_smoke(stage),)


def prod_steps(configuration: PipelineConfiguration) -> tuple[ClusterStep, ...]:
    """After the approval and the deployment, in order."""
    stage = configuration.prod
    steps = [_compile(stage, hours=configuration.compile_hours), _smoke(stage)]
    if configuration.benchmark:
        steps.append(_benchmark(stage, baseline_run=configuration.baseline_run))
    return tuple(steps)


def start_command(stage: StageConfiguration, step: ClusterStep) -> str:
    """For the pipeline's own account: start the project and wait for it."""
    return (
        f"scripts/deliver start {project_name(stage, step)} --region {stage.experiment.cluster.region} "
        f"--role arn:aws:iam::{stage.account}:role/{starter_role_name(stage)} --minutes {step.minutes}"
    )


def project_name(stage: StageConfiguration, step: ClusterStep) -> str:
    """CodeBuild project in the stage's account."""
    return f"{stage.experiment.name}-{step.name}"


def delivery_role_name(stage: StageConfiguration) -> str:
    """Role of those projects, admitted to the cluster."""
    return f"{account_wide(stage.experiment)}-delivery"


def starter_role_name(stage: StageConfiguration) -> str:
    """Role that the pipeline assumes to start them."""
    return f"{account_wide(stage.experiment)}-delivery-start"


def caller_role_name(configuration: PipelineConfiguration, stage: StageConfiguration) -> str:
    """Role of the pipeline's step, the only one that may assume the starter role."""
    return f"{configuration.name}-{configuration.region}-{stage.name}-steps"


def _smoke(stage: StageConfiguration) -> ClusterStep:
    return ClusterStep(
        name="smoke",
        commands=(f"scripts/deliver smoke --experiment {stage.path} --account {stage.account}",),
        minutes=30,
        starts_nodes=False,
    )


def _compile(stage: StageConfiguration, *, hours: int) -> ClusterStep:
    return ClusterStep(
        name="compile",
        commands=(
            f"scripts/deliver compile --experiment {stage.path} --account {stage.account} --hours {hours}",
        ),
        minutes=hours * 60,
        starts_nodes=True,
    )


def _benchmark(stage: StageConfiguration, *, baseline_run: str | None) -> ClusterStep:
    """The gate reads both runs from the bucket of results."""
    results = f"s3://{bucket(stage.experiment, 'results', stage.account)}/runs"
    gate = (
        f"aws s3 cp --only-show-errors --recursive {results}/{baseline_run} results/baseline",
        ".venv/bin/python -m benchmark gate results/run --baseline results/baseline",
    )
    return ClusterStep(
        name="benchmark",
        commands=(
            f"scripts/run {stage.path} --account {stage.account} --hours 4 --out results/run",
            *(gate if baseline_run else ()),
        ),
        minutes=5 * 60,
        starts_nodes=True,
    )
