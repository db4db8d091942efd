"""A real engine in place of the emulator: vLLM 0.32 on this machine's CPU with tiny models, loaded by the benchmark's own client.

Nothing here depends on time: acceptance by the server's counters against the stream, equal greedy answers, every request
answered, a server against itself, and the two programs that run in the arms' image. `tests/engine/install` installs the engine;
without it the tests are skipped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts import image_probe
from cdk8s_charts.workloads.serving import STARTUP_PROBE
from tests.conftest import ROOT
from tests.engine.test_models import CHECKPOINTS
from trnspec.benchmark.analyse.result_parts import WindowAtLoad
from trnspec.benchmark.analyse.window_schedule import speculative_config
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.client import request_body
from trnspec.benchmark.measure.endpoints import OF_DRAFTS, counters_in, metrics_url
from trnspec.benchmark.measure.raw_run import extent
from trnspec.benchmark.measure.records import Reply
from trnspec.benchmark.measure.schedule import Pair
from trnspec.benchmark.measure.stream import StreamTally
from trnspec.benchmark.plan import Plan
from trnspec.experiment.naming import SERVICE_PORT
from trnspec.lab.programs import LOG, Container, benchmark
from trnspec.lab.servers import LOOPBACK, running

ENGINE = ROOT / ".lab" / "venv" / "bin"
ALONE = (
    "OMP_NUM_THREADS=1",  # two threads that wait for each other are slower as soon as anything else runs
    *("VLLM_CPU_OMP_THREADS_BIND=nobind", "TOKENIZERS_PARALLELISM=false", "HF_HUB_OFFLINE=1"),
    *("VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_LOGGING_LEVEL=WARNING", "PYTHONDONTWRITEBYTECODE="),
)
PLAIN, DRAFTED, SCHEDULED, TWIN, MODEL, K = "plain", "drafted", "scheduled", "twin", "tiny", 7
PROMPTS = Path(__file__).with_name("prompts.jsonl")
STEPS = K + 1
"""Tokens of a step at most."""
TOKENS_PER_STEP = 4.0
"""At least one structured class yields as many; the models were trained to."""
REQUESTS, START_S, TRIES, TIMEOUT_S = 8, 900, 5, 600
SPECULATIVE = {"method": "draft_model", "model": str(CHECKPOINTS / "draft"), "num_speculative_tokens": K}
OPTIONS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_model_len": 512,
    "dtype": "float32",
    "kv_cache_memory_bytes": 64_000_000,
}
_DRAFTS, _, _ACCEPTED = OF_DRAFTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ENGINE / "vllm").exists(), reason="no vLLM: tests/engine/install installs it"),
]


BY_LOAD = (
    WindowAtLoad(concurrency=1, window=K, arm=DRAFTED),
    WindowAtLoad(concurrency=2, window=3, arm="smaller"),
    WindowAtLoad(concurrency=4, window=0),
)
"""A report's answer for a ladder of loads."""


def words(arm: str) -> list[str]:
    """The command of an arm's server, without its address."""
    options = [
        word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    given = {DRAFTED: SPECULATIVE, SCHEDULED: SPECULATIVE | (speculative_config(BY_LOAD) or {})}
    drafting = ["--speculative-config", json.dumps(given[arm])] if arm in given else []
    target = ["vllm", "serve", str(CHECKPOINTS / "target"), "--served-model-name", MODEL]
    return [*target, *options, "--enforce-eager", "--no-enable-prefix-caching", *drafting]


def started(container: Container, port: int) -> list[str]:
    _, *arguments = words(container.arm)
    return ["env", *ALONE, str(ENGINE / "vllm"), *arguments, "--host", LOOPBACK, "--port", str(port)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A plain and a drafting server."""
    with served(tmp_path_factory.mktemp("logs"), PLAIN, DRAFTED) as found:
        yield found


def served(logs: Path, *names: str) -> AbstractContextManager[dict[str, str]]:
    arms = [Container(arm=name, command=(), health="/health", startup_s=START_S) for name in names]
    return running(arms, started, logs=logs)


def measured(out: Path, urls: dict[str, str], prompts: Path = PROMPTS) -> tuple[Plan, dict[str, Any]]:
    """Plan and summary of a run of `python -m trnspec.benchmark`, which leaves no request without an answer."""
    asked = [
        "run",
        "--out",
        str(out),
        "--prompts",
        str(prompts),
        "--model",
        MODEL,
    ]
    asked += [
        "--requests",
        str(REQUESTS),
        "--warmup",
        "2",
        "--concurrency",
        "1",
        "--max-tokens",
        "112",
        "--questions",
        "none",
    ]
    asked += [word for arm, url in urls.items() for word in ("--arm", f"{arm}={url}")]
    for arm in urls.keys() - {PLAIN}:
        asked += ["--speculative-tokens", f"{arm}={K}"]
    benchmark(asked, log=out / LOG)
    raw = journal.read(out)
    assert extent(raw)[1], "the run is whole"
    assert not [record.error for record in raw.requests if record.error]
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (out / "report.html").stat().st_size > 10_000
    return raw.plan, summary


def test_both_arms_answer_alike_drafts_are_accepted_and_counters_agree_with_the_stream(
    urls: dict[str, str], tmp_path: Path
) -> None:
    """A counter counts a whole step, but an answer may end within one. So each prompt is sent twice: the first answer shows
    where steps end, the second is limited to end there."""
    plan, summary = measured(tmp_path / "run", urls)
    drafted = {cell["class"]: cell for cell in summary["cells"] if cell["arm"] == DRAFTED}
    assert drafted.keys() == {*plan.classes}
    lengths = {name: cell["acceptance_length"] or 0.0 for name, cell in drafted.items()}
    assert TOKENS_PER_STEP <= max(lengths.values()) <= STEPS, lengths
    equal = [cell["output_equality"] for cell in drafted.values()]
    pairs, same = (sum(one[key] for one in equal) for key in ("n_pairs", "equal"))
    assert pairs >= REQUESTS * len(drafted) // 2
    assert same >= 0.99 * pairs, "in float32 drafts change no greedy answer"
    shown = [one for body in bodies(plan) if (one := whole_steps(urls[DRAFTED], body))]
    assert len(shown) >= 3, "too few answers came with one step in each chunk: the machine is very busy"
    steps = sum(counted[_DRAFTS] for _, counted in shown)
    streamed = [tokens for output, _ in shown for tokens in (output.chunk_tokens or ())[1:]]
    assert len(streamed) == steps
    assert sum(streamed) / steps == pytest.approx(1 + sum(counted[_ACCEPTED] for _, counted in shown) / steps)


def test_a_server_measured_against_itself_answers_alike_and_has_the_same_tokens_per_step(
    urls: dict[str, str], tmp_path: Path
) -> None:
    twins = dict.fromkeys((DRAFTED, TWIN), urls[DRAFTED])
    lines = PROMPTS.read_text(encoding="utf-8").splitlines(keepends=True)
    some = [line for line in lines if json.loads(line)["class"] in ("json", "open-ended")]
    (tmp_path / "some.jsonl").write_text("".join(some), encoding="utf-8")
    _, summary = measured(tmp_path / "twins", twins, tmp_path / "some.jsonl")
    by_class: dict[str, list[float]] = {}
    for cell in summary["cells"]:
        by_class.setdefault(cell["class"], []).append(cell["acceptance_length"])
    for name, lengths in by_class.items():
        assert lengths[0] == pytest.approx(lengths[1], rel=0.02), name
    equal = [cell["output_equality"] for cell in summary["cells"] if cell["arm"] == TWIN]
    assert all(one["equal"] == one["n_pairs"] for one in equal)


def test_what_a_prompt_of_the_user_says_goes_to_both_servers_and_they_do_it(
    urls: dict[str, str], tmp_path: Path
) -> None:
    """Guided JSON, a text to stop at, a shorter answer: lines of an OpenAI batch."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    guided = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    kinds = {"guided": {"response_format": guided}, "stopped": {"stop": ["e"]}, "short": {"max_tokens": 5}}
    lines = [
        {"custom_id": f"{kind}-{n}", "category": kind, "method": "POST", "url": "/v1/chat/completions"}
        | {"body": {"model": "any", "messages": [{"role": "user", "content": f"Count to {n}."}], **more}}
        for kind, more in kinds.items()
        for n in range(8)
    ]
    file = tmp_path / "batch.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    measured(tmp_path / "run", urls, prompts=file)
    answers = [one for one in journal.read(tmp_path / "run").requests if one.arm in urls]
    of = {kind: [one for one in answers if one.prompt_id.startswith(kind)] for kind in kinds}
    assert all(len(those) >= 2 * REQUESTS for those in of.values())
    form = re.compile(r'\s*\{\s*"a"[\s:12}]*')  # the models go on with spaces until the answer is full
    assert not [one.text for one in of["guided"] if not form.fullmatch(one.text or "")]
    assert not [one.text for one in of["stopped"] if "e" in (one.text or "")]
    assert {one.completion_tokens for one in of["short"]} == {5}


def test_the_schedule_that_a_report_prints_is_one_that_vllm_serves(tmp_path: Path) -> None:
    """With one request its window is the largest; with as many as the server takes it drafts nothing."""
    with served(tmp_path, SCHEDULED) as found:
        url = found[SCHEDULED]
        asked = [{"role": "user", "content": "Repeat: the cat sat on the mat."}]
        body = {"model": MODEL, "messages": asked, "max_tokens": 48, "ignore_eos": True, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        alone = ask(url, body)[1]
        assert 0 < alone[_DRAFTS] < 48, "it drafts"
        with ThreadPoolExecutor(OPTIONS["max_num_seqs"]) as several:
            before = counters(url)
            [*several.map(lambda _: ask(url, body), range(OPTIONS["max_num_seqs"]))]
            grown = {name: value - before.get(name, 0.0) for name, value in counters(url).items()}
        assert grown[_DRAFTS] / OPTIONS["max_num_seqs"] < alone[_DRAFTS], "it drafts less under load"


def test_the_startup_probe_of_a_pod_succeeds_where_a_completion_does(urls: dict[str, str]) -> None:
    here = urls[PLAIN].removesuffix("/v1")
    probe = STARTUP_PROBE.replace(f"http://127.0.0.1:{SERVICE_PORT}", here)
    for model, code in ((MODEL, 0), ("another", 1)):
        assert subprocess.run([sys.executable, "-c", probe, model], check=False).returncode == code


def test_the_program_of_the_arguments_job_takes_both_arms_and_names_what_this_vllm_does_not(
    tmp_path: Path,
) -> None:
    engine = {
        "model": str(CHECKPOINTS / "target"),
        "enforce_eager": True,
        "enable_prefix_caching": False,
        **OPTIONS,
    }
    arms: list[dict[str, Any]] = [
        {
            "name": arm,
            "dialect": "vllm",
            "mode": "",
            "serve": words(arm),
            "engine": dict(engine),
            "config": {},
            "environment": {},
        }
        for arm in (PLAIN, DRAFTED)
    ]
    arms[1]["engine"]["speculative_config"] = dict(SPECULATIVE)

    def found() -> tuple[int, list[str]]:
        (tmp_path / "asked.json").write_text(json.dumps(arms), encoding="utf-8")
        command = [str(ENGINE / "python"), "-m", "cdk8s_charts.image_probe", str(tmp_path / "asked.json")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        return done.returncode, [line["key"] for line in lines]

    assert found() == (image_probe.TAKEN, [])
    arms[0]["serve"] += ["--no-such-thing", "1"]
    arms[1]["engine"]["speculative_config"]["window"] = 3
    assert found() == (image_probe.REFUSED, ["--no-such-thing", "speculative_config.window"])
    del arms[0]["serve"][-2:], arms[1]["engine"]["speculative_config"]["window"]
    arms[1]["engine"]["speculative_config"]["max_model_len"] = 10**6
    assert found() == (image_probe.REFUSED, ["engine config"])


def bodies(plan: Plan) -> Iterator[dict[str, Any]]:
    """The first prompt of every class, as the benchmark asks it."""
    for name in plan.classes:
        prompt = next(prompt for prompt in plan.prompts if prompt.class_name == name)
        yield json.loads(request_body(plan, Pair(id=prompt.id, prompt=prompt, nonce="0" * 6)))


def whole_steps(url: str, body: dict[str, Any]) -> tuple[Reply, dict[str, float]] | None:
    """An answer that ends where a step ends, and what the counters grew by; None where a busy machine merged chunks each time."""
    for _ in range(TRIES):
        first = ask(url, body)[0].chunk_tokens
        if first is None or len(first) < 3 or first[0] != 1 or max(first) > STEPS:
            continue
        second = ask(url, {**body, "max_tokens": sum(first[:-1])})
        if second[0].chunk_tokens == first[:-1]:
            return second
    return None


def ask(url: str, body: dict[str, Any]) -> tuple[Reply, dict[str, float]]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    tally, before = StreamTally(), counters(url)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        for line in map(bytes.decode, answer):
            if line.startswith("data: "):
                tally.take(line.removeprefix("data: ").rstrip("\n"), 0.0)
    return tally.reply(), {name: value - before.get(name, 0.0) for name, value in counters(url).items()}


def counters(url: str) -> dict[str, float]:
    with urllib.request.urlopen(metrics_url(url), timeout=TIMEOUT_S) as answer:
        return dict(counters_in(answer.read().decode()) or {})
