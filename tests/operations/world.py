"""A deployed experiment: what its stacks would have made in moto, its objects in the API server, and the controllers
that move them on whenever the clock is waited for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.eks.models import eks_backends

from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill
from infra.scale_to_zero_schedules import scale_to_zero_expressions
from tests.operations.api_server import ApiServer, plural
from tests.operations.clients import ACTIVITIES, shared_client
from trnspec.experiment import Experiment, naming
from trnspec.experiment.compilation import artifact_key

TICKS = 2
"""That a Job takes."""
NAME = "app.kubernetes.io/name"
IMAGE = "${BENCHMARK_IMAGE}"


@dataclass
class World:
    """Everything that a run touches."""

    experiment: Experiment
    api: ApiServer
    failing: dict[str, str] = field(default_factory=dict)
    """Last words of the Jobs that fail, by the beginning of their names."""
    unplaced: dict[str, str] = field(default_factory=dict)
    """What the scheduler says of pods that it cannot place, by the beginning of their names."""
    stuck: dict[str, tuple[dict[str, Any], tuple[str, str] | None]] = field(default_factory=dict)
    """Status of pods that do not start, and reason and message of their newest event, by the beginning of their names."""
    dying: set[str] = field(default_factory=set)
    """Arms that crash as soon as a benchmark is under way."""
    exits: dict[str, int] = field(default_factory=dict)
    """Exit codes of the Jobs that fail, by the beginning of their names."""
    no_capacity: bool = False
    boots: int = 0
    """Ticks from the launch of the nodes until they are in the cluster."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    activities: list[dict[str, Any]] = field(default_factory=list)
    """Of the Trn2 group's Auto Scaling group, the newest first."""
    taken: int = 0
    """How often EC2 took all Trn2 nodes away."""
    away: int = 0
    """Ticks until others come in their place."""
    image: str = "registry.example/tools:1"
    """Of benchmark, store and quality check, as the deployment fills it in."""
    files: tuple[ManifestFile, ...] = ()
    """Rendered manifests; without any, objects of their shape are made up."""
    ticks: dict[str, int] = field(default_factory=dict)
    on_tick: list[Callable[[], None]] = field(default_factory=list)
    as_pod: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    """With the rights of a service account."""

    @property
    def region(self) -> str:
        return self.experiment.cluster.region

    @property
    def group(self) -> Any:
        """The Trn2 node group in moto."""
        backend = eks_backends[DEFAULT_ACCOUNT_ID][self.region]
        return backend.clusters[self.experiment.name].nodegroups[naming.neuron_nodegroup(self.experiment)]

    @property
    def nodes(self) -> int:
        """Trn2 nodes that bill."""
        return int(self.group.scaling_config["desiredSize"])

    def client(self, service: str) -> Any:
        return shared_client(service)

    def deploy(self) -> tuple[ManifestFile, ...]:
        """What `cdk deploy` leaves; returns the manifests."""
        eks, role = self.client("eks"), f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/nodes"
        where, subnets = {"LocationConstraint": self.region}, ["subnet-0a", "subnet-0b"]
        for purpose in ("checkpoints", "artifacts", "results"):
            name = naming.bucket(self.experiment, purpose, DEFAULT_ACCOUNT_ID)
            self.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)
        version = self.experiment.cluster.kubernetes
        about: dict[str, Any] = {"roleArn": role, "resourcesVpcConfig": {"subnetIds": subnets}}
        eks.create_cluster(name=self.experiment.name, version=version, **about)
        self._add_group(role, subnets)
        described = eks_backends[DEFAULT_ACCOUNT_ID][self.region].clusters[self.experiment.name]
        described.endpoint, described.certificate_authority = self.api.url, {}
        self._fuse()
        return self.apply()

    def apply(self) -> tuple[ManifestFile, ...]:
        """What the workloads stack does, at first and again: nothing that stands is deleted."""
        files = self.files or manifests(self.experiment)
        for item in (item for item in self.filled(files) if item["kind"] != "Job"):
            kind, name = plural(item["kind"]), item["metadata"]["name"]
            self.api.put(kind, name, item, namespace=self.experiment.name)
        return files

    def filled(self, files: tuple[ManifestFile, ...]) -> list[dict[str, Any]]:
        """The objects as a deployment of this world's image applies them."""
        images = {name: self.image for name in PLACEHOLDERS if name.endswith("_IMAGE")}
        values = {"AWS_ACCOUNT": DEFAULT_ACCOUNT_ID, **images}
        return fill((item for file in files for item in file.objects), values)

    def _fuse(self) -> None:
        """The role and the daily schedule of the nodes stack."""
        self.client("iam").create_role(
            RoleName=naming.off_role_name(self.experiment), AssumeRolePolicyDocument="{}"
        )
        self.client("scheduler").create_schedule_group(Name=naming.schedule_group(self.experiment))
        self._end_daily(self.client("scheduler").create_schedule)

    def _end_daily(self, call: Callable[..., Any]) -> None:
        """The daily schedule of the group that stands, by creating or updating it."""
        self.allow_off("Allow")
        group = naming.neuron_nodegroup(self.experiment)
        target = {"ClusterName": self.experiment.name, "NodegroupName": group}
        queue = {"Arn": f"arn:aws:sqs:{self.region}:{DEFAULT_ACCOUNT_ID}:failures"}
        call(
            Name=naming.daily_schedule(self.experiment),
            GroupName=naming.schedule_group(self.experiment),
            ScheduleExpression=scale_to_zero_expressions(self.experiment)[0],
            FlexibleTimeWindow={"Mode": "OFF"},
            State="ENABLED",
            Target={
                "Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig",
                "RoleArn": self.off_role(),
                "Input": json.dumps({**target, "ScalingConfig": {"MinSize": 0, "DesiredSize": 0}}),
                "DeadLetterConfig": queue,
            },
        )

    def allow_off(self, effect: str) -> None:
        """What the policy of the schedules' role says of setting the Trn2 group to 0."""
        name = f"{self.experiment.name}/{naming.neuron_nodegroup(self.experiment)}"
        statement = {
            "Effect": effect,
            "Action": "eks:UpdateNodegroupConfig",
            "Resource": f"arn:aws:eks:{self.region}:{DEFAULT_ACCOUNT_ID}:nodegroup/{name}/*",
        }
        self.client("iam").put_role_policy(
            RoleName=naming.off_role_name(self.experiment),
            PolicyName="off",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        )

    def rentals(self) -> list[dict[str, Any]]:
        """The schedules that `run` and `scale` made."""
        found = self.client("scheduler").list_schedules()["Schedules"]
        return [one for one in found if one["Name"] != naming.daily_schedule(self.experiment)]

    def _add_group(self, role: str, subnets: list[str]) -> None:
        self.client("eks").create_nodegroup(
            clusterName=self.experiment.name,
            nodegroupName=naming.neuron_nodegroup(self.experiment),
            scalingConfig={"minSize": 0, "desiredSize": 0, "maxSize": 1},
            subnets=subnets,
            nodeRole=role,
        )

    def replace_group(self, experiment: Experiment) -> None:
        """What `cdk deploy` does after nodes are bought another way: another group in place of the one that stood."""
        standing = self.group
        self.client("eks").delete_nodegroup(
            clusterName=self.experiment.name, nodegroupName=standing.nodegroup_name
        )
        self.experiment = experiment
        self._add_group(standing.node_role, standing.subnets)
        self._end_daily(self.client("scheduler").update_schedule)

    def stored(self, purpose: str) -> dict[str, bytes]:
        """Everything in a bucket."""
        s3, name = self.client("s3"), naming.bucket(self.experiment, purpose, DEFAULT_ACCOUNT_ID)
        keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=name).get("Contents", ())]
        return {key: s3.get_object(Bucket=name, Key=key)["Body"].read() for key in keys}

    def store(self, purpose: str, key: str, content: object) -> None:
        """One JSON object into a bucket."""
        name = naming.bucket(self.experiment, purpose, DEFAULT_ACCOUNT_ID)
        self.client("s3").put_object(Bucket=name, Key=key, Body=json.dumps(content).encode())

    def compiled(self, name: str) -> None:
        """The artifact of an arm is complete: what the compiler saves first, the marker last."""
        arm = next(arm for arm in self.experiment.arms if arm.name == name)
        config = {"speculation_length": arm.tokens_per_step, "async_mode": arm.speculation is not None}
        self.store("artifacts", f"{naming.artifact_path(arm)}/neuron_config.json", {"neuron_config": config})
        self.store("artifacts", f"{naming.artifact_path(arm)}/COMPLETE", {"key": artifact_key(arm)})

    def tick(self) -> None:
        """The controllers do their work."""
        self._set_nodes()
        for job in self.api.of("jobs"):
            self._move_job(job)
        for deployment in self.api.of("deployments"):
            self._move_deployment(deployment)
        for act in self.on_tick:
            act()

    def take_nodes(self, *, ticks: int = 40) -> None:
        """EC2 takes the Trn2 nodes away; their pods are gone, and others come after so many ticks."""
        self.taken, self.away = self.taken + 1, ticks
        self.activity("Terminating EC2 instance", "Successful")
        for kind, where, name in [*self.api.objects]:
            if kind == "nodes" or (kind == "pods" and not name.startswith(naming.BENCHMARK_NAME)):
                del self.api.objects[kind, where, name]
        self.ticks = dict.fromkeys(self.ticks, 0)

    @property
    def node_names(self) -> list[str]:
        """The Trn2 nodes that are there."""
        return [node["metadata"]["name"] for node in self.api.of("nodes")]

    def _set_nodes(self) -> None:
        if self.no_capacity and self.nodes:
            self.refuse_launch()
            return
        for name in self.node_names[self.nodes :]:
            del self.api.objects[("nodes", "", name)]
        last = self.activities[0] if self.activities else {"Description": "", "StatusCode": ""}
        up = (last["Description"].startswith("Launching"), last["StatusCode"]) == (True, "Successful")
        if up and not self.nodes:
            self.activity("Terminating EC2 instance", "Successful")
        elif self.nodes and not up and not self.away:
            self.activity("Launching a new EC2 instance", "Successful")
            self.away = self.boots
        self.away = max(0, self.away - 1)
        for number in range(0 if self.away else self.nodes):
            name = f"trn2-{number}" + (f"-{self.taken}" if self.taken else "")
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            labels = {"labels": {naming.NODE_ROLE_LABEL: "neuron"}}
            self.api.put("nodes", name, {"metadata": labels, "status": ready})
            self.group.health = {
                "issues": []
            }  # only now: https://github.com/aws/containers-roadmap/issues/2326

    def activity(self, what: str, status: str, why: str = "") -> None:
        """EC2 Auto Scaling launches or terminates an instance, and keeps how that went."""
        scaling_group = self.group.resources["autoScalingGroups"][0]["name"]
        about = {
            "ActivityId": str(len(self.activities)),
            "AutoScalingGroupName": scaling_group,
            "Description": what,
        }
        ended = {"StartTime": self.now(), "StatusCode": status, "StatusMessage": why}
        self.activities.insert(0, {**about, **ended, "Cause": "a user request"})
        ACTIVITIES[scaling_group] = self.activities

    def refuse_launch(self) -> None:
        """EC2 has no such instance. EKS shows this until a node has started, also at 0 nodes."""
        why = "InsufficientInstanceCapacity - We currently do not have sufficient trn2.48xlarge capacity"
        self.activity(
            "Launching a new EC2 instance",
            "Failed",
            f"Could not launch On-Demand Instances. {why} in the Availability Zone.",
        )
        self.group.health = {"issues": [{"code": "AsgInstanceLaunchFailures", "message": why}]}

    def _move_job(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        if job.get("status", {}).get("conditions") or self._unscheduled(name):
            return
        if not name.startswith(("arguments-", "fetch-")) and not self.node_names:
            return
        self.ticks[name] = self.ticks.get(name, 0) + 1
        if self.ticks[name] < TICKS:
            return
        self.ticks[name] = 0
        words = _starts(name, self.failing)
        if words is not None:
            code = next((code for prefix, code in self.exits.items() if name.startswith(prefix)), 1)
            self._pod(name, containerStatuses=[{"name": "only", "state": {"terminated": {"exitCode": code}}}])
            self.api.logs[f"{name}-pod"] = words
            failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
            job["status"] = {"conditions": [failed]}
            return
        with self.as_pod(_account(name)):
            self._finish(name)
        self.api.objects.pop(("pods", self.experiment.name, f"{name}-pod"), None)
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    def _finish(self, name: str) -> None:
        """What a Job leaves in S3: a fetch or compile Job where its arguments say."""
        (job,) = (one for one in self.api.of("jobs") if one["metadata"]["name"] == name)
        arguments = job["spec"]["template"]["spec"]["containers"][0].get("args", [])
        to = arguments[arguments.index("--to") + 1] if "--to" in arguments else ""
        for weights in self.experiment.weights:
            if to.endswith(f"/{(path := naming.weights_path(weights))}"):
                self.store("checkpoints", f"{path}/COMPLETE", {"model": weights.model.name})
        for arm in self.experiment.arms:
            if to.endswith(f"/{naming.artifact_path(arm)}"):
                self.compiled(arm.name)
        if name.startswith(naming.LMEVAL_NAME):
            self._asked(job)
        if name.startswith(naming.BENCHMARK_NAME):
            folder = f"runs/measured-{name.removeprefix(naming.BENCHMARK_NAME)}"
            self.store("results", f"runs/unfinished/{name}/requests.jsonl", {})
            self.store("results", f"{folder}/summary.json", {"by": name})
            self.store("results", f"{folder}/llmperf/a.json", {})

    def _standing(self) -> set[str]:
        """Arms that were raised."""
        return {one["metadata"]["name"] for one in self.api.of("deployments") if one["spec"]["replicas"]}

    def _asked(self, job: dict[str, Any]) -> None:
        """lm-eval's answers of every arm that the Job has a container for, and that stands."""
        name, standing = job["metadata"]["name"], self._standing()
        for container in job["spec"]["template"]["spec"]["containers"]:
            arm = container["name"].removeprefix(naming.LMEVAL_CHECK)
            assert arm in standing
            answer = {"filter": "flexible-extract", "doc_hash": "q1", "exact_match": 1.0}
            self.store("results", f"runs/lmeval-{name}/{arm}/m/samples_gsm8k_2026-04-01.jsonl", answer)
        questions = {"dataset": "gsm8k", "revision": "0" * 40, "sha256": {"test": "1" * 64}}
        self.store("results", f"runs/lmeval-{name}/questions.json", questions)

    def _move_deployment(self, deployment: dict[str, Any]) -> None:
        name = deployment["metadata"]["name"]
        loading = any(
            job["metadata"]["name"].startswith(naming.BENCHMARK_NAME) and not job.get("status")
            for job in self.api.of("jobs")
        )
        wanted = deployment["spec"]["replicas"]
        if not wanted:
            self.api.objects.pop(("pods", self.experiment.name, f"{name}-pod"), None)
        if wanted and name in self.dying and loading:
            killed = {"name": "vllm", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
            self._pod(name, containerStatuses=[killed])
            deployment["status"] = {"readyReplicas": 0}
            return
        if wanted and self._unscheduled(name):
            return
        deployment["status"] = {"readyReplicas": wanted if self.node_names else 0}
        if wanted and self.taken and self.node_names:
            self._pod(name)
            pod = self.api.objects["pods", self.experiment.name, f"{name}-pod"]
            pod["spec"] = {"nodeName": self.node_names[0]}

    def _unscheduled(self, owner: str) -> bool:
        """Whether its pod cannot be placed, or cannot start where it was."""
        if (found := _starts(owner, self.stuck)) is not None:
            status, event = found
            self._pod(owner, phase="Pending", **status)
            if event is not None:
                self.event("Pod", f"{owner}-pod", *event)
            return True
        if (why := _starts(owner, self.unplaced)) is None:
            return False
        self._pod(owner, conditions=[{"type": "PodScheduled", "status": "False", "message": why}])
        return True

    def _pod(self, owner: str, labels: Mapping[str, str] = MappingProxyType({}), **status: Any) -> None:
        body = {"metadata": {"labels": {NAME: owner, "job-name": owner, **labels}}, "status": status}
        self.api.put("pods", f"{owner}-pod", body, namespace=self.experiment.name)

    def event(self, kind: str, name: str, reason: str, message: str, *, minutes_ago: int = 0) -> None:
        """What a component says of an object, for the last time now or earlier."""
        seen = f"{self.now() - timedelta(minutes=minutes_ago):%Y-%m-%dT%H:%M:%SZ}"
        body = {"involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message}
        about = {**body, "lastTimestamp": seen}
        self.api.put("events", f"{name}.{reason.lower()}", about, namespace=self.experiment.name)

    def pod_of_job(self, job: dict[str, Any], state: dict[str, Any]) -> None:
        """A pod that the Job controller made, whose one container is in this state."""
        name = job["metadata"]["name"]
        labels = {"batch.kubernetes.io/job-name": name, naming.STEP: job["metadata"]["labels"][naming.STEP]}
        # Init containers work while the phase is Pending.
        self._pod(name, labels, phase="Pending", initContainerStatuses=[{"name": "only", "state": state}])

    def off_role(self) -> str:
        """ARN of the role that turns nodes off."""
        return f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/{naming.off_role_name(self.experiment)}"


def _account(job: str) -> str:
    """The service account of a Job's pod."""
    kinds = {"fetch-": naming.FETCH_ACCOUNT, "compile-": naming.COMPILE_ACCOUNT}
    return _starts(job, kinds) or naming.BENCHMARK_ACCOUNT


def _starts(name: str, table: Mapping[str, Any]) -> Any:
    return next((value for prefix, value in table.items() if name.startswith(prefix)), None)


def manifests(experiment: Experiment) -> tuple[ManifestFile, ...]:
    """The objects that a run works with, in the shape of the rendered ones."""
    jobs = [
        _job("fetch", naming.fetch_job(one), _making("--to", f"s3://x/{naming.weights_path(one)}"))
        for one in experiment.weights
    ]
    baseline = artifact_key(experiment.baseline)
    for arm in experiment.arms:
        key = ["push", "--to", f"s3://x/{artifact_key(arm)}", "--key", artifact_key(arm)]
        pod = _making(*key, "--baseline", f"s3://x/{baseline}")
        jobs.append(_job("compile", naming.compile_job(arm), pod))
    jobs.append(_job("arguments", "arguments-image-0", _making()))
    names = [arm.name for arm in experiment.arms]
    arms = [{"kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": 0}} for name in names]
    plan = {
        "kind": "ConfigMap",
        "metadata": {"name": "the-plan"},
        "immutable": True,
        "data": {"plan.json": _plan_text(experiment)},
    }
    pod = {
        "initContainers": [{"name": name, "image": IMAGE} for name in ("run", "store", "repeat")],
        "containers": [{"name": "publish", "image": IMAGE}],
        "volumes": [{"name": "plan", "configMap": {"name": "the-plan"}}],
    }
    jobs.append(_job("load", naming.BENCHMARK_NAME, pod))
    asking = [{"name": f"{naming.LMEVAL_CHECK}{name}", "image": IMAGE} for name in names]
    jobs.append(_job("quality", naming.LMEVAL_NAME, {"containers": asking}))
    images = {
        "kind": "ConfigMap",
        "metadata": {"name": naming.REVIEWED_JOBS},
        "data": {name: f"${{{name}}}" for name in PLACEHOLDERS if name.endswith("_IMAGE")},
    }
    for job in jobs:
        job["metadata"]["namespace"] = experiment.name
    return (ManifestFile("all.yaml", (*jobs, *arms, plan, images)),)


def _plan_text(experiment: Experiment) -> str:
    """Read only where not all arms stand at once."""
    if len(experiment.rounds) == 1:
        return "{}"
    from cdk8s_charts.workloads.benchmark_pod import plan_text

    return plan_text(experiment)


def _making(*arguments: str) -> dict[str, Any]:
    return {"containers": [{"name": "only", "image": IMAGE, "args": [*arguments]}]}


def _job(step: str, name: str, pod: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "labels": {naming.STEP: step}}
    return {
        "kind": "Job",
        "apiVersion": "batch/v1",
        "metadata": metadata,
        "spec": {"template": {"spec": pod}},
    }
