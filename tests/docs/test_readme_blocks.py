"""Every block of the README is typed in the order in which it stands, with its real file names, in a copy of the checkout.

The first block, the demonstration, takes minutes: `.ci/run` types it and compares what it prints. What needs two servers meets two
emulated ones. What needs AWS goes as far as its first call to AWS.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.blocks import Block, command_blocks
from tests.lab.emulator.arms import BASELINE, SPECULATIVE

pytestmark = pytest.mark.slow
DEMO, MEASURE, OWN, AWS, REPORT = command_blocks(ROOT / "README.md")
FASTER = 0.02
"""Emulated steps take this share of their time."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has or would take, with the packages that are installed here."""
    folder = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for name in (".venv", "node_modules"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def servers() -> Iterator[dict[str, str]]:
    """Two emulated servers, by the address that the README gives them."""
    started, found = [], {}
    for number, argv in enumerate((BASELINE, SPECULATIVE), 1):
        how = ["--listen", "127.0.0.1:0", "--time-scale", str(FASTER), "--", *argv]
        named = ["--served-model-name", "Qwen/Qwen3-8B"]
        command = [sys.executable, "-m", "trnspec.lab.emulator", *how, *named]
        started.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        first_line = started[-1].stderr.readline() if started[-1].stderr else ""
        address = re.search(r"127\.0\.0\.1:\d+", first_line)
        assert address, first_line
        found[f"127.0.0.1:800{number}"] = address[0]
    yield found
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a block, as a person without AWS types it."""
    left_out = ("AWS_", "PYTHON", "TRNSPEC", "CDK_", "PYTEST", "BENCHMARK_", "OPENAI_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    kept |= {"HOME": str(folder.parent), "AWS_EC2_METADATA_DISABLED": "true", "CDK_VALIDATION": "false"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=kept, capture_output=True, text=True, check=False, timeout=900
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def lines(block: Block) -> list[str]:
    return [line for line in block.text.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]


def test_the_readme_has_these_blocks_and_no_other() -> None:
    assert [block.marker for block in (DEMO, MEASURE, OWN, AWS, REPORT)] == [
        *("# takes minutes", "# needs a run", None),
        *("# needs AWS", "# needs a run"),
    ]


def test_two_servers_are_measured_and_reported(checkout: Path, servers: dict[str, str]) -> None:
    """With fewer and shorter answers than the README's, so that it takes seconds."""
    for line in (*lines(MEASURE), *lines(REPORT)):
        for told, real in servers.items():
            line = line.replace(told, real)
        line = line.replace("--max-tokens 256", "--max-tokens 16 --requests 8")
        done = typed(line, checkout)
        assert done.returncode in (0, 1), done.stderr  # 1: this machine was too busy for an answer
        assert "plain" in done.stdout, done
    assert (checkout / "results/mine/report.html").exists()


def test_an_experiment_is_written_checked_predicted_rendered_and_synthesized(checkout: Path) -> None:
    for line in lines(OWN):
        done = typed(line, checkout)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert (checkout / "manifests/mine").is_dir()
    # The packages that are installed here would take this checkout's code.
    synth = "PYTHONPATH=src .venv/bin/npx cdk synth --quiet -c experiment=experiments/mine.yaml"
    assert typed(synth, checkout).returncode == 0
    assert (checkout / "cdk.out/mine-workloads.template.json").exists()

    preflight, *rest = lines(AWS)
    done = typed(preflight, checkout)
    assert (done.returncode in (1, 3), "no AWS credentials on this machine" in done.stdout) == (True, True), (
        done
    )
    for line in rest:
        done = typed(line, checkout)
        if line.startswith("./trnspec promote"):
            assert (done.returncode, "arm: drafted" in done.stdout) == (0, True), done.stderr
        else:
            assert done.returncode == 3, f"{line}\n{done.stderr}"
            assert "no AWS credentials on this machine; run `aws sso login`" in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
