"""Names and labels that stacks, manifests and scripts must agree on, made in one place from the experiment."""

from __future__ import annotations

import hashlib
import re

from experiment.arms import Arm, Experiment, Weights
from experiment.catalogue.runtimes import Runtime
from experiment.compilation import artifact_key
from experiment.placement import place

ACCOUNT_PLACEHOLDER = "${AWS_ACCOUNT}"
"""Stands for the account id in rendered manifests; filled at deploy time."""
SERVING_ACCOUNT, BENCHMARK_ACCOUNT, FETCH_ACCOUNT, COMPILE_ACCOUNT = (
    "serving",
    "benchmark",
    "fetch",
    "compile",
)
BENCHMARK_NAME, LMEVAL_NAME = "qwen-llmperf", "qwen-lmeval"
PROFILE = "profile-"
"""Before an arm's name: the CronJob that profiles it; and before the folders of profiles in the bucket of results."""
LMEVAL_CHECK = "check-"
"""Before an arm's name: the container that asks it."""
SERVICE_PORT, GATEWAY_PORT = 8000, 8080
SECOND_PORT = SERVICE_PORT + 1
"""A second port of an arm's Service, to the same port of its pods: the gateway asks on it where the arm is not the route's own, and its log
shows that."""
METRICS_PORT, METRICS_PORT_NAME = 9400, "metrics"
"""On which the benchmark shows a run to Prometheus."""
RESULTS_PREFIX = "runs/"
"""Under which the benchmark stores its runs in the bucket of results."""
STATE_PREFIX = "state/"
"""Under which the state of a run lies in the bucket of results, apart from what pods may write."""
ACTIVE_RUN = f"{STATE_PREFIX}active.json"
"""The unfinished run."""
AUTOSCALER_NAMESPACE, AUTOSCALER_OPERATOR = "keda", "keda-operator"
"""What KEDA's chart labels the pods of that reads metrics (`app.kubernetes.io/name`)."""
PLAN_FILE = "plan.json"
"""In the folder that a run reads, and of a ConfigMap."""
PLANS_PREFIX = "plans/"
"""Under which plans lie in the bucket of results that are too large for a ConfigMap."""
STALE_TAG = ("lifecycle", "stale")
"""Key and value of the tag on objects of an artifact that no arm has any more."""
COMPLETE = "COMPLETE"
"""Last file of a folder of weights or of an artifact: its presence says that every other one was written before. `store` writes
it, and travels alone."""
NEURON_TAINT_KEY = "aws.amazon.com/neuron"
NODE_ROLE_LABEL = "speculation.trn2/role"
"""On every node: see `role_label`."""
UNPINNED = "unpinned"
"""Stands for a revision that the experiment leaves open."""
_SLUG_LENGTH, _CRON_JOB_LENGTH = 36, 52


def namespace(experiment: Experiment) -> str:
    """Kubernetes namespace of everything that serves or measures."""
    return experiment.name


def cluster_name(experiment: Experiment) -> str:
    """EKS cluster."""
    return experiment.cluster.existing or experiment.name


def nodes_owner(experiment: Experiment) -> str:
    """Name of the experiment whose deployment makes the Trn2 nodes, and what turns them off."""
    return experiment.cluster.nodes_of or experiment.name


def role_label(experiment: Experiment, role: str) -> str:
    """Value of `NODE_ROLE_LABEL` on the nodes for `neuron` or `system` that the experiment's pods may use.

    In a cluster that several experiments share, nodes belong to one of them: another node image may stand on those of
    another. Nodes that came with the cluster have the plain word.
    """
    owner = nodes_owner(experiment)
    came = role == "system" and "system-nodes" in experiment.cluster.provided
    return role if came or owner == cluster_name(experiment) else f"{owner}-{role}"


def driver_label(allocation: str) -> dict[str, str]:
    """On the Trn2 nodes of all experiments that get devices in this way, and on nodes of nobody else: a cluster has one driver for
    them all."""
    return {"speculation.trn2/devices": allocation}


def bucket(experiment: Experiment, purpose: str, account: str) -> str:
    """S3 bucket for `checkpoints`, `artifacts` or `results`; `account` is an id, a token or the placeholder."""
    return f"{experiment.name}-{purpose}-{account}-{experiment.cluster.region}"


def account_wide(experiment: Experiment) -> str:
    """Beginning of names that an account has once for all its regions: of roles and dashboards. Roles begin with the
    experiment's name, by which the delivery's policies know them (`infra/bootstrap/policies.yaml`)."""
    return f"{experiment.name}-{experiment.cluster.region}"


def metrics_namespace(experiment: Experiment) -> str:
    """CloudWatch namespace that the benchmark publishes to."""
    return f"SpeculativeDecoding/{experiment.name}"


def weights_path(weights: Weights) -> str:
    """Folder of a model's files inside the bucket of checkpoints; one each for weights of another bucket or folder."""
    of_folder = f"-{hashlib.sha256(weights.address.encode()).hexdigest()[:8]}" if weights.address else ""
    return f"{weights.model.name}/{weights.revision or UNPINNED}{of_folder}"


def artifact_path(arm: Arm) -> str:
    """Folder of an arm's compiled graphs inside the bucket of artifacts."""
    return artifact_key(arm)


def fetch_job(weights: Weights, content: str = "") -> str:
    """Job that fetches a model at a revision; `content` is the rest of its immutable template, hashed into the name."""
    return _hashed("fetch", weights.model.name, f"{weights_path(weights)}\n{content}")


def compile_job(arm: Arm, content: str = "") -> str:
    """Job that compiles an arm; the same name for the same artifact, whatever the arm is called."""
    draft = f"-k{arm.speculation.num_speculative_tokens}" if arm.speculation else ""
    return _hashed("compile", f"{arm.target.model.name}{draft}", f"{artifact_path(arm)}\n{content}")


def arguments_job(runtime: Runtime, content: str) -> str:
    """Job that asks a runtime's image whether it takes the arms' arguments; `content` is the rest of its template."""
    return _hashed("arguments", runtime.name, f"{runtime.image}\n{content}")


def profile_cron_job(arm: Arm) -> str:
    """CronJob of an arm's profile; its name may have 52 characters."""
    name = f"{PROFILE}{arm.name}"
    return name if len(name) <= _CRON_JOB_LENGTH else _hashed("profile", arm.name, arm.name)


def watchers_group(experiment: Experiment) -> str:
    """Kubernetes group of those who may look at nodes and devices, Secrets excepted."""
    return f"{experiment.name}-watchers"


def neuron_release(experiment: Experiment) -> str:
    """Helm release of the Neuron chart. Helm upgrades and removes what it knows by this name, and refuses objects that carry
    another one's: in an existing cluster it is the experiment's own."""
    return f"{experiment.name}-neuron" if experiment.cluster.existing else "neuron"


def neuron_nodegroup(experiment: Experiment) -> str:
    """EKS managed node group of Trn2 nodes, e.g. `qwen3-32b-trn2-a-on-demand-d2-28`.

    EKS gives a group that exists neither another zone nor another way of buying, and never an earlier node image
    (https://docs.aws.amazon.com/eks/latest/APIReference/API_UpdateNodegroupVersion.html). CloudFormation replaces a
    group only under another name: so each has its own, and so have each reservation and each line of Neuron drivers.
    """
    capacity, image = experiment.cluster.capacity, experiment.node_image
    reservation = capacity.reservation_id[-8:] if capacity.reservation_id else ""
    driver = f"d{image.driver_line.replace('.', '-')}" if image else ""
    parts = (experiment.cluster.trn2_zone[-1], capacity.kind, reservation, driver)
    return neuron_nodegroups(experiment) + "-".join(filter(None, parts))


def neuron_nodegroups(experiment: Experiment) -> str:
    """How the names of all such groups begin."""
    return f"{nodes_owner(experiment)}-trn2-"


def system_nodegroup(experiment: Experiment) -> str:
    """EKS managed node group of everything else."""
    return f"{experiment.name}-system"


def schedule_group(experiment: Experiment) -> str:
    """EventBridge Scheduler group of the schedules that turn the Trn2 group off."""
    return f"{nodes_owner(experiment)}-off"


def daily_schedule(experiment: Experiment) -> str:
    """The schedule of that group that ends every day; a rental's own is made after its model."""
    return f"{nodes_owner(experiment)}-daily"


def off_role_name(experiment: Experiment) -> str:
    """Role that EventBridge Scheduler assumes to set the Trn2 group to 0."""
    return f"{nodes_owner(experiment)}-{experiment.cluster.region}-trn2-off"


def promoted_service(experiment_name: str) -> str:
    """Service of the promoted arm: the name stays when another arm is promoted."""
    return f"{experiment_name}-service"


def gateway(experiment: Experiment) -> str:
    """Deployment of the gateway in front of arms that serve by routes."""
    return f"{experiment.name}-gateway"


def promoted_load_balancer(experiment_name: str) -> str:
    """Service through which callers beyond the cluster reach the promoted arm."""
    return f"{experiment_name}-service-tls"


def slug(text: str) -> str:
    """`text` with what Kubernetes accepts in a name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _hashed(kind: str, what: str, content: str) -> str:
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return f"{kind}-{slug(what.rsplit('/', 1)[-1])[:_SLUG_LENGTH].strip('-')}-{digest}"


def stack_name(experiment: Experiment, part: str) -> str:
    """CloudFormation stack, e.g. `qwen3-32b-network`."""
    return f"{experiment.name}-{part}"


PROTECTED = ("storage", "cluster")
"""Parts whose stacks CloudFormation deletes only after their termination protection is lifted, as a teardown does."""


def control_plane_log_group(experiment: Experiment) -> str:
    """Where EKS writes the logs of the control plane: it chooses the name.

    https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
    """
    return f"/aws/eks/{cluster_name(experiment)}/cluster"


def dashboard_name(experiment: Experiment) -> str:
    """CloudWatch dashboard; further pages of it have a number after it."""
    return account_wide(experiment)


def service_dashboard_name(experiment: Experiment) -> str:
    """CloudWatch dashboard of the promoted service."""
    return f"{account_wide(experiment)}-service"


def container_insights_log_groups(experiment: Experiment) -> tuple[str, ...]:
    """Where the CloudWatch add-on writes: metrics as log events, and the logs of pods, system and nodes.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-view-metrics.html
    """
    kinds = ("application", "dataplane", "host", "performance")
    return tuple(f"/aws/containerinsights/{cluster_name(experiment)}/{kind}" for kind in kinds)


def bastion_name(experiment: Experiment) -> str:
    """Tag `Name` of the instance through which a private endpoint is reached, and its Auto Scaling group."""
    return f"{cluster_name(experiment)}-way-in"


def notices_topic(experiment: Experiment) -> str:
    """SNS topic that alarms report to."""
    return f"{experiment.name}-notices"


NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
ROLE = "speculation.trn2/workload"
"""`server`, `gateway` (passes callers on to servers), `client` (may call servers), `job` (may only leave the cluster) or `offline` (may reach nobody)."""
STEP = "speculation.trn2/step"
"""On Jobs that one actor releases: `arguments`, `fetch`, `compile` or `batch`."""
BATCH = "speculation.trn2/batch"
"""Arms with the same number run at the same time."""

ARTIFACT_KEY = "speculation.trn2/artifact-key"
"""Annotation of a server's pods."""
LAB_ONLY = "speculation.trn2/lab-only"
"""Annotation of every object of an experiment of the lab, which no tool applies."""
LAB_ONLY_TEXT = "read by ./trnspec lab on one machine; never applied to a cluster"


def labels(experiment: Experiment, name: str, role: str) -> dict[str, str]:
    """Labels of an object and its pods."""
    return {NAME: name, PART_OF: experiment.name, ROLE: role}


def batch_of(experiment: Experiment, arm: Arm) -> str:
    """Number of the batch in which the arm stands."""
    return next((str(where.batch) for where in place(experiment) if where.arm == arm.name), "0")
