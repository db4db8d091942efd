"""The command itself: its address, both arms under the benchmark in real time, refusals, and a prompt end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.conftest import REFERENCE, ROOT
from tests.lab.emulator.arms import BASELINE, MODEL, OPEN_ENDED, PLAN, SPECULATIVE, plan_of
from trnspec.benchmark import __main__ as benchmark
from trnspec.lab.emulator.__main__ import main

PATIENCE_S = 180
"""For what takes a second on an idle machine."""
_LINES = map(
    json.loads, (ROOT / "experiments/prompts/general.jsonl").read_text(encoding="utf-8").splitlines()
)
_SHIPPED = [(one["class"], one["prompt"]) for one in _LINES]
TEXTS = {
    "repetition": [text for name, text in _SHIPPED if name == "repetition"][:8],
    "open-ended": [text for name, text in _SHIPPED if name == "open-ended"][:8],
    "code": [f"Write a haiku about tide number {i}" for i in range(8)],
}
"""The last is called as a class of the shipped prompts is, and has none of them."""
FIRST_LINE = r"emulated {}: Qwen/Qwen3-32B, .+, 4 slots, (http://127\.0\.0\.1:\d+)/v1 "
CAUTION = "qwen-sd-vllm has k = 9, and is emulated with the step times of Qwen/Qwen3-32B"


@contextmanager
def _emulator(
    folder: Path, argv: Sequence[str], *options: str, plan: object = PLAN, machine: str = "trn2"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running emulator and its URL, known from the first line that it says."""
    folder.mkdir(exist_ok=True)
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    own = ["--listen", "127.0.0.1:0", "--plan", str(plan_file), *options]
    command = [sys.executable, "-m", "trnspec.lab.emulator", *own, "--", *argv]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = re.match(FIRST_LINE.format(machine), said := process.stderr.readline())
        assert url, said + process.stderr.read()
        yield process, url[1]
    finally:
        process.kill()
        process.communicate()


def _measured(folder: Path) -> tuple[Path, str]:
    """The results of the benchmark on both arms, four times as fast as in truth, and what it said meanwhile."""
    prompts = [
        {"id": f"{name}-{i}", "class": name, "prompt": text}
        for name, texts in TEXTS.items()
        for i, text in enumerate(texts)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)) + "\n", encoding="utf-8")
    both, plan = ("--time-scale", "0.25"), plan_of(prompts)
    wider, content = folder / "wider.yaml", yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    content["arms"][1]["speculation"]["num_speculative_tokens"] = 9
    del content["expect"]  # of seven tokens
    wider.write_text(yaml.safe_dump(content), encoding="utf-8")
    (folder / "prompts").symlink_to(REFERENCE.parent / "prompts")
    of = ("--of", str(wider), "qwen-sd-vllm")
    with (
        _emulator(folder / "plain", BASELINE, *both, plan=plan) as (_, plain),
        _emulator(folder / "drafted", SPECULATIVE, *both, *of, plan=plan) as (_, drafted),
    ):
        arms = ["--arm", f"plain={plain}/v1", "--arm", f"drafted={drafted}/v1", "--model", MODEL]
        asked = ["--prompts", str(folder / "prompts.jsonl"), "--max-tokens", "16", "--requests", "8"]
        known = {"name": "drafted", "speculative_tokens": 7, "max_tokens_per_step": 7}
        (folder / "plan.json").write_text(json.dumps({"arms": [{"name": "plain"}, known]}), encoding="utf-8")
        words = ["run", *arms, *asked, "--plan", str(folder / "plan.json"), "--out", str(folder / "out")]
        command = [sys.executable, "-m", "trnspec.benchmark", *words]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder / "out", done.stderr


@pytest.mark.slow  # in real time
def test_a_benchmark_of_both_arms_says_what_speeds_up_and_what_the_emulator_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = _measured(tmp_path)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    ratio = {one["class"]: one["ratio"] for one in summary["comparisons"] if one["metric"] == "tpot_s"}
    # What a busy machine adds to each step favours fewer steps; the figures themselves are held in simulated time.
    assert ratio["repetition"] > 2.0
    assert ratio["open-ended"] < 0.75 * ratio["repetition"]
    equality = [cell["output_equality"] for cell in summary["cells"] if cell["arm"] == "drafted"]
    assert [one["n_pairs"] for one in equality] == [one["equal"] for one in equality]
    assert min(one["n_pairs"] for one in equality) >= 6
    (line,) = [line for line in said.splitlines() if line.startswith("drafted: ") and "per step" in line]
    assert line.endswith(" tokens per step by generation counter, and nothing in the stream contradicts it")
    cells = {(cell["arm"], cell["class"]): cell["acceptance"] for cell in summary["cells"]}
    assert cells["drafted", "repetition"]["source"] == "generation counter"
    assert cells["drafted", "repetition"]["per_position"], "of chunks, since the counter tells the same"
    assert cells["drafted", "code"]["source"] == "made up"
    assert cells["drafted", "code"]["tokens_per_step"] is None
    assert benchmark.main(["report", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    verdicts = {(one["class"], one["verdict"], one["ratio"] is None) for one in summary["comparisons"]}
    assert {one for one in verdicts if one[0] == "code"} == {("code", "withheld", True)}
    assert ("repetition", "faster", False) in verdicts
    (mix,) = summary["mix"]
    assert {one["class"] for one in mix["classes"]} == {"repetition", "open-ended"}
    assert "repetition and open-ended weighted equally" in shown
    assert "Withheld: code." in shown
    caution = "the emulator does not know how many drafts of drafted are accepted for code"
    page = (out / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    for text in (shown, page, "\n".join(row["says"] for row in summary["evidence"])):
        assert caution in text
        assert CAUTION in text
    assert benchmark.main(["advise", str(out)]) == 0
    advice = " ".join(capsys.readouterr().out.split())
    assert "code, 4 concurrent requests, drafted: left out, the emulator does not know how many" in advice


def test_without_the_argv_of_an_arm_nothing_is_emulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith(
        "Usage: python -m trnspec.lab.emulator [OPTIONS] -- vllm serve MODEL ...\n"
    )
    for argv in ([], ["--"], ["--", "vllm", "serve"]):
        assert main(["--listen", "127.0.0.1:0", *argv]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "argv: nothing to emulate; after the options give -- vllm serve MODEL" in line


@pytest.mark.slow
def test_sigterm_ends_it_at_once_even_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    async def interrupted(process: subprocess.Popen[str], url: str) -> None:
        async with aiohttp.ClientSession(url) as session:
            body = {"prompt": OPEN_ENDED, "max_tokens": 900, "ignore_eos": True, "stream": True}
            async with session.post("/v1/completions", json=body) as response:
                await response.content.readany()
                process.send_signal(signal.SIGTERM)
                with pytest.raises(aiohttp.ClientError):
                    await response.read()

    plan = plan_of([{"class": "poems", "prompt": "Roses are"}])
    with _emulator(tmp_path, BASELINE, plan=plan) as (process, url):
        asyncio.run(interrupted(process, url))
        assert process.wait(timeout=PATIENCE_S) == 0
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert not said, "no traceback"


def test_a_taken_port_is_one_line_and_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["--listen", address, "--", *BASELINE]) == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"--listen {address}: " in err
