"""`pip install .`: what the wheel holds and needs, and that it measures beside packages of the same names as its rooms.

What installs from PyPI takes most of a minute and runs with PYPI=1, as `.ci/run` does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.benchmark.endpoint import MODEL, served
from tests.conftest import REFERENCE, ROOT
from tests.test_architecture import MODULES, imported
from trnspec import __version__
from trnspec.core.safe_output import printable
from trnspec.operations.__main__ import VERBS, WITHOUT_CHECKOUT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NEEDED = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
STRANGERS = ("benchmark", "cdk8s_charts", "core", "experiment", "infra", "operations")
"""Packages of others in the same environment."""
pypi = pytest.mark.skipif(os.environ.get("PYPI") != "1", reason="installs from PyPI, a minute: PYPI=1")


def test_the_version_of_the_package_is_the_one_that_runs_record() -> None:
    assert PROJECT["project"]["version"] == __version__


def test_the_wheel_needs_what_the_benchmark_and_the_checks_import_and_nothing_else() -> None:
    measuring = [name for name in MODULES if name.startswith(("trnspec.benchmark", "trnspec.experiment"))]
    found = {other.partition(".")[0] for name in measuring for other in imported(name)}
    asked_for_where_used = {"tokenizers"}
    outside = (
        found
        - {"trnspec", *sys.stdlib_module_names, "pydantic_core", "botocore", "markupsafe"}
        - asked_for_where_used
    )
    distributions = packages_distributions()
    named = {distributions[name][0].lower() for name in outside} | {"click", "rich"}  # the command line's own
    assert named == {one.partition("==")[0].lower() for one in [*NEEDED, *EXTRAS["aws"]]}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip alone; the path of its programs."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(empty: Path) -> Path:
    """The same after `pip install .`, typed twice, with packages of others that cannot even be imported."""
    for _ in range(2):
        subprocess.run([empty / "pip", "install", "--quiet", ROOT], check=True, cwd=empty, timeout=900)
    (packages,) = empty.parent.glob("lib/*/site-packages")
    for name in STRANGERS:
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("raise SystemExit('of somebody else')", encoding="utf-8")
    return empty


def _run(program: Path, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a person's shell does it in a folder that has nothing of the repository."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(word) for word in (program, *words)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pypi
def test_the_wheel_holds_every_committed_file_of_its_rooms_and_no_other(empty: Path, tmp_path: Path) -> None:
    wheel = (empty / "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT)
    subprocess.run(wheel, check=True, timeout=120)
    (made,) = tmp_path.glob("*.whl")
    held = {
        name
        for name in zipfile.ZipFile(made).namelist()
        if ".dist-info/" not in name and not name.endswith("/")
    }
    assert {name.partition("/")[0] for name in held} == {"trnspec"}
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT / "src", check=True, capture_output=True, text=True)
    assert held == {name for name in listed.stdout.splitlines() if (ROOT / "src" / name).exists()}


@pypi
def test_an_experiment_and_a_file_of_prompts_are_checked(installed: Path, tmp_path: Path) -> None:
    assert "check" in _run(installed / "trnspec", "--help", cwd=tmp_path).stdout
    shown = _run(installed / "pip", "show", "trn2-speculative-decoding", cwd=tmp_path).stdout
    assert f"Version: {__version__}\n" in shown
    (tmp_path / "prompts").symlink_to(REFERENCE.parent / "prompts")
    mine = tmp_path / "mine.yaml"
    mine.write_text(REFERENCE.read_text(encoding="utf-8"), encoding="utf-8")
    done = _run(installed / "trnspec", "check", "mine.yaml", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["name"] == "qwen3-32b"
    mine.write_text("name: [", encoding="utf-8")
    done = _run(installed / "trnspec", "check", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("mine.yaml")
    lines = (json.dumps({"text": f"Why {number}?"}) for number in range(8))
    (tmp_path / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    done = _run(installed / "trnspec", "check", "mine.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "8 prompts" in done.stdout


@pypi
def test_two_endpoints_are_measured_and_reported_with_a_page(installed: Path, tmp_path: Path) -> None:
    prompts = [{"id": f"p{n}", "class": "any", "prompt": f"Count to {n}."} for n in range(8)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    with served(first_ms=20, step_ms=5) as server:
        done = _run(
            *(installed / "trnspec", "measure", "--prompts", "mine.jsonl", "--out", "mine"),
            *(
                "--model",
                MODEL,
                "--max-tokens",
                16,
                "--requests",
                8,
                "--exit-zero",
            ),  # a busy machine's answer is withheld
            *("--arm", f"plain={server.url('steady')}", "--arm", f"drafted={server.url('bursts')}"),
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "font-family" in page, "the style sheet is missing"
    assert "emulated timetable" in _run(installed / "trnspec", "results", ".", cwd=tmp_path).stdout
    done = _run(
        *(installed / "python", "-m", "trnspec.benchmark", "publish", "mine", "--namespace", "mine"),
        *("--endpoint-url", "http://127.0.0.1:9"),  # an emulated run goes to a rehearsal only
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "trnspec.benchmark publish: needs boto3; run: pip install boto3\n",
    )


@pypi
@pytest.mark.parametrize("verb", sorted(set(VERBS) - WITHOUT_CHECKOUT))
def test_a_verb_that_needs_more_says_so_in_one_line(verb: str, installed: Path, tmp_path: Path) -> None:
    done = _run(installed / "trnspec", verb, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(rf"trnspec {verb}: needs the repository, .* \./trnspec {verb} there", line), (
        printable(line)
    )
    assert list(tmp_path.iterdir()) == []
