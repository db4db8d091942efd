"""The load generators: the benchmark with its plan, and the quality check, lm-eval's gsm8k against every loaded arm,
to show that answers are no worse. Each round of a run has a Job of its own, made from the reviewed one."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cdk8s_charts import pods, stores
from cdk8s_charts.manifests import content_suffix, kubernetes_object, synthesize_one
from cdk8s_charts.workloads.namespace import MEASURING, priority_name
from cdk8s_charts.workloads.serving import api_key, service_url
from trnspec.benchmark import plan as plans
from trnspec.benchmark.plan import Plan, PlannedPrompt
from trnspec.core.findings import Finding, Misuse
from trnspec.experiment import naming
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.published import SLOWEST_TPOT_S
from trnspec.experiment.cost import arm_usd_per_hour, loading_s, quality_s, quality_tokens
from trnspec.experiment.model import WARMUP

if TYPE_CHECKING:
    import cdk8s

MAX_CONFIG_MAP_BYTES = 200_000
"""Maximum bytes of a plan in a ConfigMap. Kubernetes accepts 1 MiB, but `cdk deploy` passes objects to a Lambda function,
whose event was long limited to 256 KB (https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)."""

_REMEDY = "the benchmark would not take this plan; change it in the experiment's file"


def plan(experiment: Experiment) -> Plan:
    """Return the plan of the benchmark. Raises `Misuse` if the benchmark would refuse it."""
    settings, baseline = experiment.benchmark, experiment.baseline
    asks = {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
    try:
        return Plan(
            schema=1,
            experiment=experiment.name,
            model=baseline.served_name,
            baseline=baseline.name,
            arms=tuple(_arm(experiment, arm) for arm in experiment.arms),
            concurrency=settings.concurrency,
            requests=settings.requests,
            warmup=WARMUP,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            extra_body=asks if baseline.target.model.can_think and settings.endpoint == "chat" else {},
            slo=settings.goodput or None,
            mixed=settings.mixed,
            cell_minutes=settings.cell_minutes,
            prompts=tuple(PlannedPrompt.model_validate(prompt.planned) for prompt in experiment.prompts),
        )
    except ValidationError as error:
        found = (Finding(str(one["loc"][0]), one["input"], one["msg"], _REMEDY) for one in error.errors())
        raise Misuse(*found) from None


def plan_text(experiment: Experiment) -> str:
    """Return the plan as JSON, without default values."""
    return json.dumps(plan(experiment).to_dict(exclude_unset=True), indent=1, ensure_ascii=False)


def plan_object(experiment: Experiment) -> tuple[str, bytes] | None:
    """Return a plan that is too large for a ConfigMap, after its key in the bucket of results; `None` for all others.

    `./trnspec run` puts it there before it loads the arms; the key is its hash, so it never has to be replaced.
    """
    content = plan_text(experiment).encode()
    if len(content) <= MAX_CONFIG_MAP_BYTES:
        return None
    return f"{naming.PLANS_PREFIX}{hashlib.sha256(content).hexdigest()}.json", content


def _arm(experiment: Experiment, arm: Arm) -> plans.PlannedArm:
    base = experiment.baseline_of(arm)
    return plans.PlannedArm(
        name=arm.name,
        url=service_url(experiment, arm),
        baseline=None if base is experiment.baseline else base.name,
        speculative_tokens=arm.num_speculative_tokens,
        max_tokens_per_step=arm.tokens_per_step,
        usd_per_hour=round(arm_usd_per_hour(experiment, arm), 4),
        also_changes=arm.also_changes,
    )


RESULTS = "/results"
JOB_UID: dict[str, Any] = {
    "name": "JOB_UID",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}},
}
"""The name is the same for every pod of a Job, so that a new pod finds the files of the last one."""
_KEPT_S = 7 * 24 * 3600


def measuring_job(
    experiment: Experiment, name: str, step: str, body: pods.PodSpec, *, deadline_s: int
) -> dict[str, Any]:
    """Return the Job of which a run makes one for each round."""
    body["serviceAccountName"] = naming.BENCHMARK_ACCOUNT
    body["restartPolicy"] = "OnFailure"  # in place, so that what was measured is still on the disk
    pods.on_system_nodes(body)
    pods.harden(body, grace_s=60, priority=priority_name(experiment, MEASURING), level="restricted")
    own = naming.labels(experiment, name, "client")
    return pods.job(
        experiment,
        name,
        body,
        labels={**own, naming.STEP: step},
        pod_labels=own,
        backoffLimit=3,
        activeDeadlineSeconds=deadline_s,
        ttlSecondsAfterFinished=_KEPT_S,
    )


_PLAN_MOUNT = "/plan"


def benchmark_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the plan as a ConfigMap, and the Job; or only the Job, which copies a large plan and checks its hash."""
    large = plan_object(experiment)
    if large is None:
        text = plan_text(experiment)
        name = f"{naming.BENCHMARK_NAME}-plan-{content_suffix(text)}"
        config = kubernetes_object(
            "v1", "ConfigMap", name, within=experiment, data={naming.PLAN_FILE: text}, immutable=True
        )
        return [config, benchmark_job(experiment, {"configMap": {"name": name}})]
    key, content = large
    copied = f"{_PLAN_MOUNT}/{naming.PLAN_FILE}"
    digest = key.rpartition("/")[2].removesuffix(".json")
    arguments = ["get", stores.address(experiment, "results", key), "--sha256", digest, "--to", copied]
    arguments += ["--region", experiment.cluster.region]
    get = pods.tool("plan", arguments, cpu="100m", memory="256Mi")
    pods.mount(get, "plan", _PLAN_MOUNT, writable=True)
    room = {"emptyDir": {"sizeLimit": f"{len(content) // 2**20 + 10}Mi"}}
    return [benchmark_job(experiment, room, get)]


def benchmark_job(
    experiment: Experiment, plan_source: dict[str, Any], *before: pods.Container
) -> dict[str, Any]:
    """Return the Job that loads the arms, one at a time.

    It brings back what an earlier pod of this Job kept, keeps and publishes what is measured, measures, stores that with its summary,
    asks the baseline again, and publishes with a summary that has those answers too. Each is a container, so that none needs a
    shell: a publication that fails is repeated without measuring again. What a run that fails had measured is published by then.
    """
    written = synthesize_one(lambda chart: _add_publisher(chart, experiment))
    body: pods.PodSpec = written["spec"]["template"]["spec"]
    publish = body["containers"][0]
    publish["securityContext"] = pods.container_security(writable_root=False)
    run = {
        **publish,
        "name": "run",
        "args": ["run", "--plan", f"{_PLAN_MOUNT}/{naming.PLAN_FILE}", "--out", RESULTS, "--exit-zero"],
        "env": [*publish["env"], *api_key(experiment, "BENCHMARK_API_KEY")],
        "volumeMounts": [*publish["volumeMounts"]],
    }
    repeat = {**run, "name": "repeat", "volumeMounts": [*publish["volumeMounts"]]}
    run["args"] = [*run["args"], "--no-repeats"]
    region = ["--region", experiment.cluster.region]
    kept = stores.address(experiment, "results", f"{naming.RESULTS_PREFIX}unfinished/$(JOB_UID)")
    restore = pods.tool("restore", ["restore", kept, "--to", RESULTS, *region], cpu="100m", memory="256Mi")
    keep = pods.tool("keep", ["keep", RESULTS, "--to", kept, *region], cpu="100m", memory="256Mi")
    keep["restartPolicy"] = "Always"  # a sidecar, which ends when the rest has
    for tool in (restore, keep):
        tool["env"] = [JOB_UID]
        pods.mount(tool, "results", RESULTS, writable=True)
    # Alarms need the requests while the run is on. In a process of its own, so that measuring shares nothing with it.
    follow = {
        **publish,
        "name": "follow",
        "args": ["publish", RESULTS, "--follow", "--namespace", naming.metrics_namespace(experiment)],
        # It works for a second in each minute; the request is what the run leaves free on a system node.
        "resources": {
            "requests": {"cpu": "20m", "memory": "256Mi"},
            "limits": {"cpu": "500m", "memory": "256Mi"},
        },
        "volumeMounts": [*publish["volumeMounts"]],
        "restartPolicy": "Always",
    }
    body["initContainers"] = [restore, keep, follow, *before, run, {**publish, "name": "store"}, repeat]
    pods.add_volume(body, "plan", _PLAN_MOUNT, run, repeat, **plan_source)
    # Far above what a run can take: every answer of full length at the slowest, an hour for the rest, 2 h at least.
    answer_s = experiment.longest_answer * SLOWEST_TPOT_S
    longest_s = loading_s(experiment, experiment.arms, answer_s=answer_s)
    deadline_s = max(7200, int(longest_s) + 3600)
    return measuring_job(experiment, naming.BENCHMARK_NAME, "load", body, deadline_s=deadline_s)


def _add_publisher(chart: cdk8s.Chart, experiment: Experiment) -> None:
    """Add a Job with the container that publishes what was measured. The other containers of the pod are made of it."""
    import cdk8s
    import cdk8s_plus_27 as kplus  # here, because they start jsii

    uploaded = ["--upload", stores.address(experiment, "results", naming.RESULTS_PREFIX)]
    job = kplus.Job(
        chart,
        naming.BENCHMARK_NAME,
        service_account=kplus.ServiceAccount.from_service_account_name(
            chart, "account", naming.BENCHMARK_ACCOUNT
        ),
        automount_service_account_token=False,
    )
    container = job.add_container(
        name="publish",
        image=pods.TOOLS_IMAGE,
        image_pull_policy=kplus.ImagePullPolicy.IF_NOT_PRESENT,
        command=["python", "-m", "trnspec.benchmark"],
        args=["publish", RESULTS, "--namespace", naming.metrics_namespace(experiment), *uploaded],
        env_variables={"AWS_REGION": kplus.EnvValue.from_value(experiment.cluster.region)},
        resources=kplus.ContainerResources(
            cpu=kplus.CpuResources(request=kplus.Cpu.units(1), limit=kplus.Cpu.units(1)),
            memory=kplus.MemoryResources(request=cdk8s.Size.mebibytes(512), limit=cdk8s.Size.mebibytes(512)),
        ),
    )
    volume = kplus.Volume.from_empty_dir(chart, "results", "results", size_limit=cdk8s.Size.gibibytes(5))
    container.mount(RESULTS, volume)


QUALITY_IMAGE = "${LMEVAL_IMAGE}"
_SHOTS = 5
"""Number of worked examples in gsm8k; with an answer they need about 1,300 tokens."""
_ROOM_FOR_SHOTS = 2048
_CACHE = "/tmp/datasets"
_WITH_QUESTIONS = f"""\
mkdir -p {_CACHE} && cp -R /opt/questions/datasets/. {_CACHE}/ && cp /opt/questions/questions.json {RESULTS}/ && exec lm_eval "$@"
"""
"""Reading the questions creates lock files in their folder, and the image's folder is read-only; and offline `datasets` looks
for them in the folder of HF_DATASETS_CACHE alone (datasets 5.2.0, load.py, CachedDatasetModuleFactory). Which questions
they were, by commit and hash, goes with the answers."""


def quality_job(experiment: Experiment) -> dict[str, Any]:
    """Return a container an arm, side by side, because nothing is timed, and a sidecar that stores what they write until the last has
    ended.

    As with the benchmark, all arms are asked that stand: where they stand in batches, a Job is made with those of one.
    """
    address = stores.address(experiment, "results", f"{naming.RESULTS_PREFIX}lmeval-$(JOB_UID)")
    region = ["--region", experiment.cluster.region]
    keep = pods.tool("keep", ["keep", RESULTS, "--to", address, *region], cpu="100m", memory="256Mi")
    keep |= {"env": [JOB_UID], "restartPolicy": "Always"}
    checks = {arm.name: _quality_check(experiment, arm) for arm in experiment.arms}
    body: pods.PodSpec = {"initContainers": [keep], "containers": [*checks.values()]}
    room: dict[str, Any] = {"emptyDir": {"sizeLimit": "2Gi"}}
    pods.add_volume(body, "results", RESULTS, *checks.values(), writable=True, **room)
    pods.mount(keep, "results", RESULTS)
    for name, check in checks.items():  # each has its own copy of the questions, with its locks
        pods.add_volume(body, f"tmp-{name}", "/tmp", check, writable=True, **room)
    # Every answer of full length at 0.2 s a token, and an hour.
    deadline_s = int(quality_s(experiment, token_s=SLOWEST_TPOT_S)) + 3600
    return measuring_job(experiment, naming.LMEVAL_NAME, "quality", body, deadline_s=deadline_s)


def lm_eval_arguments(experiment: Experiment, arm: Arm) -> list[str]:
    """Return lm-eval as a client of the arm's API. It sends texts and counts no tokens, so it needs no tokenizer.

    Where five worked examples and an answer do not fit into a sequence, the questions are asked without examples.
    """
    settings = experiment.benchmark
    assert settings.lm_eval is not None
    chat = settings.endpoint == "chat"
    model = {
        "model": arm.served_name,
        "base_url": f"{service_url(experiment, arm)}/{'chat/completions' if chat else 'completions'}",
        "num_concurrent": arm.serving.max_num_seqs,
        "max_retries": 3,
        "tokenized_requests": False,
        "tokenizer_backend": "none",
    }
    generation: dict[str, Any] = {"temperature": 0, "max_gen_toks": quality_tokens(arm)}
    if chat and arm.target.model.can_think:
        generation["chat_template_kwargs"] = {"enable_thinking": settings.thinking}
    shots = _SHOTS if arm.serving.max_model_len >= _ROOM_FOR_SHOTS else 0
    return [
        "run",
        *("--model", "local-chat-completions" if chat else "local-completions"),
        *("--model_args", json.dumps(model, sort_keys=True)),
        *("--gen_kwargs", json.dumps(generation, sort_keys=True)),
        *("--tasks", "gsm8k", "--num_fewshot", str(shots), "--limit", str(settings.lm_eval)),
        *("--output_path", f"{RESULTS}/{arm.name}", "--log_samples"),
        *(["--apply_chat_template"] if chat else []),
    ]


def _quality_check(experiment: Experiment, arm: Arm) -> pods.Container:
    check = pods.container(
        f"{naming.LMEVAL_CHECK}{arm.name}",
        QUALITY_IMAGE,
        ["/bin/sh", "-c", _WITH_QUESTIONS, "lm_eval"],
        arguments=lm_eval_arguments(experiment, arm),
        environment={"HOME": "/tmp", "HF_DATASETS_CACHE": _CACHE},
        resources={  # a client waits most of the time; what it needs was measured (`ASKED_AT_ONCE`)
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        },
        security=pods.container_security(writable_root=False),
    )
    check["env"] += api_key(experiment, "OPENAI_API_KEY")
    return check
