"""llmperf itself, mended, run by the rendered pod's command: against the emulated arms, and against known schedules.

It needs what its image holds, and is skipped without:

    python3.12 -m venv env && env/bin/pip install --require-hashes --requirement images/llmperf/requirements.txt
    LLMPERF_PYTHON=env/bin/python LLMPERF_HOME=<the files of images/llmperf/sources.sha256> pytest tests/lab/test_llmperf.py

Where its tokenizer is not there, one that counts words stands in.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.values import request_values
from benchmark.llmperf.asking import TOKENIZER
from benchmark.measure import journal
from benchmark.measure.journal import RawRun
from cdk8s_charts.render import render
from experiment import Experiment
from experiment.arms import Llmperf
from lab.arms import endpoints
from lab.rendered import containers, mounted_plan
from tests.benchmark.conftest import plan_content
from tests.benchmark.endpoint import Endpoint, Timing
from tests.cdk8s_charts.conftest import of_kind
from tests.cdk8s_charts.variations import with_benchmark
from tests.conftest import ROOT

PYTHON, HOME = (os.environ.get(name) for name in ("LLMPERF_PYTHON", "LLMPERF_HOME"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON and HOME), reason="LLMPERF_PYTHON and LLMPERF_HOME name no llmperf"),
]
WORDS = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaTokenizerFast
words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
LlamaTokenizerFast(tokenizer_object=words).save_pretrained(sys.argv[1])
"""
STEP_S, TOKENS, SIZES = 0.04, 17, (4,)
"""A step of the speculating arm holds four tokens; the answer is one token and four steps."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llmperf's sources, as they were pinned, with a tokenizer."""
    folder = tmp_path_factory.mktemp("llmperf") / "home"
    shutil.copytree(str(HOME), folder)
    pins = str(ROOT / "images/llmperf/sources.sha256")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", pins], cwd=folder, check=True)
    if not (folder / TOKENIZER).is_dir():
        subprocess.run([str(PYTHON), "-c", WORDS, str(folder / TOKENIZER)], check=True)
    return folder


def _pod_runs(command: list[str], mounts: dict[str, Path], home: Path) -> int:
    """The container's command with its mounts where they are here."""
    words = [str(mounts.get(word, word)) for word in command]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home.parent), "LLMPERF_HOME": str(home)}
    return subprocess.run([str(PYTHON), *words[1:]], cwd=ROOT, env=environment).returncode


def _own_files(results: Path, arm: str, cell: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    responses, summary = (
        json.loads(path.read_text())
        for ending in ("individual_responses", "summary")
        for path in (results / "llmperf" / arm / cell).glob(f"*_{ending}.json")
    )
    return responses, summary


def test_the_rendered_pod_measures_both_emulated_arms(
    reference: Experiment, home: Path, tmp_path: Path
) -> None:
    prompts = tuple(prompt for prompt in reference.prompts if prompt.class_name == "numeric")
    experiment = with_benchmark(
        replace(reference, prompts=prompts),
        llmperf=Llmperf(text="classes", mean_input_tokens=64),
        requests=8,
        max_tokens=24,
    )
    files = render(experiment)
    body = of_kind(files, "CronJob")["qwen-llmperf"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (run,) = (entry for entry in body["initContainers"] if entry["name"] == "run")
    plan, file, results = mounted_plan(files), tmp_path / "plan.json", tmp_path / "results"
    file.write_text(json.dumps(plan))
    with endpoints(containers(files), plan=file, folder=tmp_path) as urls:
        for arm in plan["arms"]:
            arm["url"] = urls[arm["name"]]
        file.write_text(json.dumps(plan))
        mounts = {"/plan/plan.json": file, "/results": results}
        assert _pod_runs([*run["command"], *run["args"]], mounts, home) == 0

    summary = json.loads((results / "summary.json").read_text())
    assert summary["run"]["provenance"] == "emulated"
    assert summary["run"]["complete"]
    assert [(cell["arm"], cell["class"], cell["n"], cell["errors"]) for cell in summary["cells"]] == [
        ("qwen-vllm", "numeric", 8, 0),
        ("qwen-sd-vllm", "numeric", 8, 0),
    ]
    plain, fused = (
        [r for r in journal.read(results).requests if r.arm == arm["name"]] for arm in plan["arms"]
    )
    assert max(r.started_unix_s for r in plain) < min(r.started_unix_s for r in fused)
    # Eight prompts were made, the same for both; which of them a thread asks twice is a matter of its pace.
    assert {r.prompt_id for r in plain} & {r.prompt_id for r in fused}
    assert len({r.prompt_id for r in (*plain, *fused)}) <= 8
    assert {r.token_source for r in (*plain, *fused)} == {"final-usage"}


@pytest.fixture(scope="module")
def known(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RawRun, Endpoint]]:
    """A plain arm, a speculating one of the same step and one that fails, after llmperf asked all of them."""
    folder = tmp_path_factory.mktemp("known")
    steps = {"first_s": 0.08, "step_s": STEP_S, "usage": "final"}
    arms = {"plain": Timing(**steps), "fused": Timing(**steps, sizes=SIZES)}  # type: ignore[arg-type] # of one type here
    with Endpoint(arms) as server:
        content = plan_content(
            baseline="plain",
            arms=[{"name": name, "url": server.url(name)} for name in ("plain", "fused", "429")],
            concurrency=[3],
            requests=8,
            max_tokens=TOKENS,
        )
        (folder / "plan.json").write_text(json.dumps(content))
        command = ["python", "-m", "benchmark", "llmperf", "--plan", str(folder / "plan.json")]
        code = _pod_runs([*command, "--out", str(folder / "out"), "--mean-input-tokens", "64"], {}, home)
        assert code == 1  # an arm without any answer
        yield folder / "out", journal.read(folder / "out"), server


def test_as_many_requests_arrive_as_are_counted(known: tuple[Path, RawRun, Endpoint]) -> None:
    _, raw, server = known
    for arm in ("plain", "fused", "429"):
        assert sum(seen.arm == arm for seen in server.seen) == 8
        assert sum(record.arm == arm for record in raw.requests) == 8


def test_time_per_token_is_true_and_llmperfs_figure_is_the_step(
    known: tuple[Path, RawRun, Endpoint],
) -> None:
    """What the emulation of llmperf's figure in this project's own runs says is what llmperf itself says."""
    out, raw, server = known
    for arm, per_step in (("plain", 1), ("fused", 4)):
        values = [request_values(record, per_step) for record in raw.requests if record.arm == arm]
        truth = [(seen.sent[-1] - seen.sent[0]) / (TOKENS - 1) for seen in server.seen if seen.arm == arm]
        tpot_s = statistics.fmean(value["tpot_s"] for value in values)
        assert tpot_s == pytest.approx(statistics.fmean(truth), rel=0.1)
        responses, summary = _own_files(out, arm, "sonnets-c3")
        mean = statistics.fmean
        assert mean(r["inter_token_latency_s"] for r in responses) == pytest.approx(tpot_s, rel=1e-6)
        legacy_s = mean(value["llmperf_inter_token_latency_s"] for value in values)
        assert mean(r["llmperf_inter_token_latency_s"] for r in responses) == pytest.approx(
            legacy_s, rel=0.01
        )
        assert legacy_s > 0.8 * STEP_S
        assert summary["results_inter_token_latency_s_mean"] == pytest.approx(tpot_s, rel=1e-6)
        assert summary["results_llmperf_inter_token_latency_s_mean"] == pytest.approx(legacy_s, rel=0.01)
        assert "compared with files of llmperf as it is" in summary["schema_note"]
        assert {r["server_output_tokens"] for r in responses} == {TOKENS}


def test_failures_are_counted_with_their_status_and_no_figure(
    known: tuple[Path, RawRun, Endpoint],
) -> None:
    out, raw, _ = known
    failures = [record for record in raw.requests if record.arm == "429"]
    assert {record.error for record in failures} == {"http_429"}
    assert all("told to answer 429" in (record.message or "") for record in failures)
    responses, summary = _own_files(out, "429", "sonnets-c3")
    assert {response["ttft_s"] for response in responses} == {None}
    assert summary["results_number_errors"] == 8
