"""What applications need of a server: a chat template, parsers and a name, the same for every arm."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdk8s_charts.manifests import fill
from cdk8s_charts.parity import options
from cdk8s_charts.workloads import check_jobs
from cdk8s_charts.workloads.benchmark_pod import lm_eval_arguments, plan
from tests.cdk8s_charts.objects import named, pods_of
from tests.cdk8s_charts.variations import rendered
from tests.experiment.edits import Variation, combined
from trnspec.experiment import Experiment, InvalidExperiment, load
from trnspec.experiment.arms import digest

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %} ${HOME}\n"
OPTIONS = combined("""{serving.advanced.served_model_name: assistant, serving.advanced.chat_template: own.jinja,
    serving.advanced.tool_call_parser: hermes, serving.advanced.reasoning_parser: qwen3}""")


@pytest.fixture
def path(variation: Variation) -> Path:
    path = variation(OPTIONS)
    path.with_name("own.jinja").write_text(TEMPLATE)
    return path


def test_every_server_and_the_image_are_given_the_template_and_the_parsers(path: Path) -> None:
    objects = rendered(load(path))
    servers = [pod for pod in pods_of(objects) if "vllm" in {one["name"] for one in pod.containers}]
    assert len(servers) == 2
    for pod in servers:
        given = options(pod.container("vllm")["command"])
        own = {
            "--tool-call-parser": "hermes",
            "--enable-auto-tool-choice": True,
            "--reasoning-parser": "qwen3",
        }
        assert given.items() >= own.items()
        folder, _, file = str(given["--chat-template"]).rpartition("/")
        (asking,) = (one for one in pods_of(objects) if one.name.startswith("arguments-"))
        for holder, container in ((pod, pod.container("vllm")), (asking, *asking.containers)):
            (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == folder)
            source = holder.volumes[mount["name"]]["configMap"]["name"]
            (deployed,) = fill([named(objects, "ConfigMap")[source]], {})
            assert deployed["data"] == {file: TEMPLATE}, (
                "as it was written, with what looks like a placeholder"
            )


def test_everybody_asks_for_the_served_name(path: Path) -> None:
    experiment = load(path)
    arm = experiment.baseline
    (pod,) = (pod for pod in pods_of(rendered(experiment)) if pod.name == arm.name)
    server = pod.container("vllm")
    assert plan(experiment).model == "assistant"
    assert '"model": "assistant"' in " ".join(lm_eval_arguments(experiment, arm))
    assert server["startupProbe"]["exec"]["command"][-1] == "assistant"
    assert options(server["command"])["--served-model-name"] == "assistant"


def test_options_of_the_server_compile_nothing_again_and_another_template_is_another_experiment(
    path: Path, reference: Experiment
) -> None:
    experiment = load(path)
    engines = [
        [arm["engine"] for arm in check_jobs.asked(one, one.baseline.runtime)]
        for one in (experiment, reference)
    ]
    assert engines[0] == engines[1]
    path.with_name("own.jinja").write_text(f"{TEMPLATE} ")
    assert digest(load(path)) != digest(experiment)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% for m in messages %}{{ m }", "is not a Jinja template: "),
        ("{% for m in messages %}{{ m }}", "is not a Jinja template: "),
        ("Hello", "does not use `messages`"),
        ("{{ messages }}" + " " * 100_000, "is larger than"),
    ],
)
def test_a_template_that_can_answer_nothing_is_refused(text: str, why: str, path: Path) -> None:
    path.with_name("own.jinja").write_text(text)
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    (line,) = caught.value.lines
    assert "serving.advanced.chat_template = 'own.jinja': " + why in line


def test_a_template_with_tags_of_transformers_and_of_jinjas_extensions_is_taken(path: Path) -> None:
    for text in (
        "{% generation %}{{ messages }}{% endgeneration %}",
        "{% for m in messages %}{% break %}{% endfor %}",
    ):
        path.with_name("own.jinja").write_text(text)
        assert load(path).baseline.serving.chat_template == text
