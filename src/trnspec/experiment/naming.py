"""Names and labels that stacks, manifests and scripts share."""

from __future__ import annotations

import hashlib
import re

from trnspec.experiment.arms import Arm, Experiment, Weights
from trnspec.experiment.catalogue.runtimes import Runtime
from trnspec.experiment.compilation import artifact_key

ACCOUNT_PLACEHOLDER = "${AWS_ACCOUNT}"
"""Placeholder for the account id in rendered manifests; filled in at deploy time."""
SERVING_ACCOUNT, BENCHMARK_ACCOUNT = "serving", "benchmark"
FETCH_ACCOUNT, COMPILE_ACCOUNT = "fetch", "compile"
BENCHMARK_NAME, LMEVAL_NAME = "qwen-llmperf", "qwen-lmeval"
PROMOTED_SUFFIX = "-service"
"""After the experiment's name: the Service of the promoted arm. Its name does not change when another arm is promoted."""
LMEVAL_CHECK = "check-"
"""Prefix of the container that asks an arm the questions of `lm_eval`."""
SERVICE_PORT = 8000
RESULTS_PREFIX = "runs/"
"""Prefix of runs in the results bucket; the benchmark writes there."""
STATE_PREFIX = "state/"
"""Prefix of the state of a run in the results bucket; pods cannot write there."""
ACTIVE_RUN = f"{STATE_PREFIX}active.json"
"""The unfinished run."""
PLAN_FILE = "plan.json"
"""Name of the plan in the folder that a run reads, and in a ConfigMap."""
PLANS_PREFIX = "plans/"
"""Prefix of plans that are too large for a ConfigMap, in the results bucket."""
STALE_TAG = ("lifecycle", "stale")
"""Key and value of the tag on the objects of an artifact that no arm uses any more."""
COMPLETE = "COMPLETE"
"""Completion marker: the last file of a folder of weights or of an artifact. It exists only if all other files were written. `store`
writes it and does not import this module."""
ARTIFACT_FILES = "FILES.json"
"""The list of an artifact's files, which `store` writes as well."""
COMPILED_AT_SERVING = "compiled_at_serving"
"""Key of the line that a server's startup probe writes into its log: the number of compiled graphs that the stored artifact lacks."""
NEURON_TAINT_KEY = "aws.amazon.com/neuron"
NODE_ROLE_LABEL = "speculation.trn2/role"
"""On every node: `neuron` or `system`."""
UNPINNED = "unpinned"
"""Placeholder for a revision that the experiment leaves open."""
_SLUG_LENGTH = 36


def namespace(experiment: Experiment) -> str:
    """Kubernetes namespace of everything that serves or measures."""
    return experiment.name


def cluster_name(experiment: Experiment) -> str:
    """EKS cluster."""
    return experiment.name


def driver_label(allocation: str) -> dict[str, str]:
    """Label of the Trn2 nodes. The driver for this allocation runs only on nodes with it."""
    return {"speculation.trn2/devices": allocation}


def bucket(experiment: Experiment, purpose: str, account: str) -> str:
    """S3 bucket for `checkpoints`, `artifacts` or `results`; `account` is an id, a token or the placeholder."""
    return f"{experiment.name}-{purpose}-{account}-{experiment.cluster.region}"


def account_wide(experiment: Experiment) -> str:
    """Beginning of names that an account may have only once in all its regions: roles and dashboards. The pipeline's policies allow
    roles by the experiment's name, with which they begin (`infra/bootstrap/policies.yaml`)."""
    return f"{experiment.name}-{experiment.cluster.region}"


def metrics_namespace(experiment: Experiment) -> str:
    """CloudWatch namespace that the benchmark publishes to."""
    return f"SpeculativeDecoding/{experiment.name}"


def weights_path(weights: Weights) -> str:
    """Folder of a model's files inside the bucket of checkpoints; one each for weights of another bucket or folder."""
    of_folder = f"-{_digest(weights.address)}" if weights.address else ""
    return f"{weights.model.name}/{weights.revision or UNPINNED}{of_folder}"


def artifact_path(arm: Arm) -> str:
    """Folder of an arm's compiled graphs inside the bucket of artifacts."""
    return artifact_key(arm)


def fetch_job(weights: Weights) -> str:
    """Job that fetches a model at a revision."""
    return _hashed("fetch", weights.model.name, weights_path(weights))


def compile_job(arm: Arm) -> str:
    """Job that compiles an arm; the same name for the same artifact, whatever the arm is called."""
    draft = f"-k{arm.speculation.num_speculative_tokens}" if arm.speculation else ""
    return _hashed("compile", f"{arm.target.model.name}{draft}", artifact_path(arm))


def arguments_job(runtime: Runtime) -> str:
    """Job that asks a runtime's image whether it takes the arms' arguments."""
    return _hashed("arguments", runtime.name, runtime.image)


def runners_group(experiment: Experiment) -> str:
    """Kubernetes group of those who run the experiment and do not administer the cluster."""
    return f"{experiment.name}-runners"


def neuron_nodegroup(experiment: Experiment) -> str:
    """EKS managed node group of Trn2 nodes, e.g. `qwen3-32b-trn2-a-on-demand-d2-28`.

    EKS cannot change the subnet or the purchase option of an existing group, or set an earlier node image
    (https://docs.aws.amazon.com/eks/latest/APIReference/API_UpdateNodegroupVersion.html). CloudFormation replaces a
    group only if its name changes, so the name contains the zone, the purchase option, the reservation, the driver line and, in an
    existing VPC, a hash of subnet and reservation.
    """
    cluster, image = experiment.cluster, experiment.node_image
    capacity, reservation = cluster.capacity, cluster.capacity.reservation_id or ""
    subnet = cluster.network.private_subnets.get(cluster.trn2_zone)
    place = _digest(subnet + reservation) if subnet else reservation[-8:]
    driver = f"d{image.driver_line.replace('.', '-')}" if image else ""
    parts = (cluster.trn2_zone[-1], capacity.kind, place, driver)
    return neuron_nodegroups(experiment) + "-".join(filter(None, parts))


def neuron_nodegroups(experiment: Experiment) -> str:
    """Return the prefix of the names of all such groups."""
    return f"{experiment.name}-trn2-"


def system_nodegroup(experiment: Experiment, *fixed: str) -> str:
    """EKS managed node group for everything except the models. `fixed` is what EKS cannot change in a group; another value makes
    another group."""
    return f"{experiment.name}-system-{_digest(','.join(fixed))}"


def schedule_group(experiment: Experiment) -> str:
    """EventBridge Scheduler group of the schedules that turn the Trn2 group off."""
    return f"{experiment.name}-off"


def daily_schedule(experiment: Experiment) -> str:
    """The schedule that turns the group off every day; each rental copies it for its own schedule."""
    return f"{experiment.name}-daily"


def off_role_name(experiment: Experiment) -> str:
    """Role that EventBridge Scheduler assumes to set the Trn2 group to 0."""
    return f"{experiment.name}-{experiment.cluster.region}-trn2-off"


RUN_ARGUMENTS = "RUN_ARGUMENTS"
"""Environment variable of a build that runs the experiment: the words behind `./trnspec run`."""
MAX_BUILD_MINUTES = 2160
"""The longest build: `TimeoutInMinutes` of https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-codebuild-project.html"""
LAST_ANSWER = f"{STATE_PREFIX}answer.json"
"""The last build that had an answer, and its run, in the results bucket."""
STOP_REQUEST = f"{STATE_PREFIX}stop"
"""The id of a build whose run somebody wants to stop, in the results bucket."""


def build_project(experiment: Experiment, step: str) -> str:
    """CodeBuild project of a step: `run`, or `smoke` of the pipeline."""
    return f"{experiment.name}-{step}"


def build_log_group(experiment: Experiment, step: str) -> str:
    """Log group of that project."""
    return f"/aws/codebuild/{build_project(experiment, step)}"


def brought_home(run: str) -> str:
    """Prefix of the results that a build stores for its run, in the results bucket."""
    return f"{RESULTS_PREFIX}{run}/results/"


def runner_role_name(experiment: Experiment) -> str:
    """Role of the builds that run the experiment."""
    return f"{account_wide(experiment)}-run"


def slug(text: str) -> str:
    """Return `text` with only the characters that Kubernetes accepts in a name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _hashed(kind: str, what: str, content: str) -> str:
    return f"{kind}-{slug(what.rsplit('/', 1)[-1])[:_SLUG_LENGTH].strip('-')}-{_digest(content)}"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def stack_name(experiment: Experiment, part: str) -> str:
    """CloudFormation stack, e.g. `qwen3-32b-network`."""
    return f"{experiment.name}-{part}"


PROTECTED = ("storage", "cluster")
"""Stacks with termination protection; a teardown disables it first."""


def control_plane_log_group(experiment: Experiment) -> str:
    """Log group of the control plane; EKS chooses the name.

    https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
    """
    return f"/aws/eks/{cluster_name(experiment)}/cluster"


def dashboard_name(experiment: Experiment) -> str:
    """CloudWatch dashboard."""
    return account_wide(experiment)


def container_insights_log_groups(experiment: Experiment) -> tuple[str, ...]:
    """Log groups of the CloudWatch add-on: metrics as log events, and the logs of pods, system and nodes.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-view-metrics.html
    """
    kinds = ("application", "dataplane", "host", "performance")
    return tuple(f"/aws/containerinsights/{cluster_name(experiment)}/{kind}" for kind in kinds)


def bastion_name(experiment: Experiment) -> str:
    """Tag `Name` of the bastion, through which a private endpoint is reached, and of its Auto Scaling group."""
    return f"{cluster_name(experiment)}-way-in"


def notices_topic(experiment: Experiment) -> str:
    """SNS topic that alarms report to."""
    return f"{experiment.name}-notices"


NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
ROLE = "speculation.trn2/workload"
"""`server`, `client` (may call servers), `job` (may only call services outside the
cluster) or `offline` (no network)."""
REVIEWED_JOBS = "reviewed-jobs"
"""ConfigMap that says which images are deployed, and which Jobs may be created."""
STEP = "speculation.trn2/step"
"""Label of Jobs, which a run or `verify` creates: `fetch`, `arguments`, `verify`, `compile`, `load` or `quality`."""
BATCH = "speculation.trn2/batch"
"""Arms with the same number (a round) run at the same time."""

ARTIFACT_KEY = "speculation.trn2/artifact-key"
"""Annotation of a server's pods."""


def labels(experiment: Experiment, name: str, role: str) -> dict[str, str]:
    """Labels of an object and its pods."""
    return {NAME: name, PART_OF: experiment.name, ROLE: role}


def batch_of(experiment: Experiment, arm: Arm) -> str:
    """Return the number of the first round that has the arm."""
    return next((str(number) for number, arms in enumerate(experiment.rounds) if arm in arms), "0")
