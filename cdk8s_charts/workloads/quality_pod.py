"""The quality check: lm-eval's gsm8k against every arm that is loaded, to show that answers are no worse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cdk8s_charts.pods import pod
from cdk8s_charts.workloads import benchmark_pod
from cdk8s_charts.workloads.benchmark_pod import JOB_UID, RESULTS
from cdk8s_charts.workloads.serving import api_key, service_url
from experiment.catalogue.published import SLOWEST_TPOT_S
from experiment.cost import quality_s, quality_tokens
from experiment.naming import (
    ACCOUNT_PLACEHOLDER,
    LMEVAL_CHECK,
    LMEVAL_NAME,
    RESULTS_PREFIX,
    bucket,
)

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment


IMAGE = "${LMEVAL_IMAGE}"
_SHOTS = 5
"""gsm8k's own number of worked examples; together with an answer they need about 1,300 tokens."""
_ROOM_FOR_SHOTS = 2048
_CACHE = "/tmp/datasets"
_WITH_QUESTIONS = f"""\
mkdir -p {_CACHE} && cp -R /opt/questions/datasets/. {_CACHE}/ && cp /opt/questions/questions.json {RESULTS}/ && exec lm_eval "$@"
"""
"""Reading the questions makes lock files beside them, which the image's folder does not take; and offline `datasets` looks
for them in the folder of HF_DATASETS_CACHE alone (datasets 5.2.0, load.py, CachedDatasetModuleFactory). Which questions
they were, by commit and hash, goes with the answers."""


def quality_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """The CronJob, where the experiment asks for the check."""
    return [] if experiment.benchmark.lm_eval is None else [cron_job(experiment)]


def cron_job(experiment: Experiment) -> dict[str, Any]:
    """One init container an arm, in turn, then the upload.

    As with the benchmark, all arms are asked that stand: where they stand in batches, a Job is made with those of one.
    """
    address = f"s3://{bucket(experiment, 'results', ACCOUNT_PLACEHOLDER)}/{RESULTS_PREFIX}lmeval-$(JOB_UID)"
    region = ["--region", experiment.cluster.region]
    upload = pod.tool(
        "upload", ["keep", RESULTS, "--once", "--to", address, *region], cpu="200m", memory="256Mi"
    )
    upload["env"] = [JOB_UID]
    checks = [_check(experiment, arm) for arm in experiment.served_arms]
    body: pod.PodSpec = {"initContainers": checks, "containers": [upload]}
    for volume, path in (("results", RESULTS), ("tmp", "/tmp")):
        pod.add_volume(body, volume, path, *checks, writable=True, emptyDir={"sizeLimit": "2Gi"})
    pod.mount(upload, "results", RESULTS)
    return benchmark_pod.measuring_cron_job(experiment, LMEVAL_NAME, body, deadline_s=_deadline_s(experiment))


def arguments(experiment: Experiment, arm: Arm) -> list[str]:
    """lm-eval as a client of the arm's API. It sends texts and counts no tokens, so it needs no tokenizer.

    Where five worked examples and an answer do not fit into a sequence, the questions are asked without examples.
    """
    settings = experiment.benchmark
    assert settings.lm_eval is not None
    chat = settings.endpoint == "chat"
    model = {
        "model": arm.target.model.name,
        "base_url": f"{service_url(experiment, arm)}/{'chat/completions' if chat else 'completions'}",
        "num_concurrent": arm.serving.max_num_seqs,
        "max_retries": 3,
        "tokenized_requests": False,
        "tokenizer_backend": "none",
    }
    generation: dict[str, Any] = {
        "temperature": 0,
        "max_gen_toks": quality_tokens(arm),
    }
    if chat and arm.target.model.can_think:
        generation["chat_template_kwargs"] = {"enable_thinking": settings.thinking}
    shots = _SHOTS if arm.serving.max_model_len >= _ROOM_FOR_SHOTS else 0
    return [
        "run",
        *("--model", "local-chat-completions" if chat else "local-completions"),
        *("--model_args", json.dumps(model, sort_keys=True)),
        *("--gen_kwargs", json.dumps(generation, sort_keys=True)),
        *("--tasks", "gsm8k", "--num_fewshot", str(shots), "--limit", str(settings.lm_eval.limit)),
        *("--output_path", f"{RESULTS}/{arm.name}", "--log_samples"),
        *(["--apply_chat_template"] if chat else []),
    ]


def _check(experiment: Experiment, arm: Arm) -> pod.Container:
    check = pod.container(
        f"{LMEVAL_CHECK}{arm.name}",
        IMAGE,
        ["/bin/sh", "-c", _WITH_QUESTIONS, "lm_eval"],
        arguments=arguments(experiment, arm),
        environment={"HOME": "/tmp", "HF_DATASETS_CACHE": _CACHE},
        resources=pod.amounts(cpu="1", memory="2Gi"),
        security=pod.container_security(writable_root=False),
    )
    check["env"] += api_key(experiment, "OPENAI_API_KEY")
    return check


def _deadline_s(experiment: Experiment) -> int:
    """Every answer of full length at 0.2 s a token, and an hour."""
    return int(quality_s(experiment, token_s=SLOWEST_TPOT_S)) + 3600
