"""An installation that fails names the cause; help needs few packages. The pip and the processes are real."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from core.install_failure import cause
from lab.real import installation
from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # pip and the making of an environment
QUIET = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1"}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the two scripts need of a checkout, and an environment with pip alone."""
    folder = tmp_path_factory.mktemp("fresh")
    for name in ("scripts", "core", "benchmark", "experiment", "operations"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("requirements*.txt"), ROOT / "package-lock.json", ROOT / "trnspec"):
        shutil.copy(path, folder)
    subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
    return folder


def typed(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    env = {**kept, **QUIET, **environment, "PYTHON": sys.executable}
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=150
    )


@pytest.fixture(scope="module")
def nothing_listens() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def test_without_a_connection_the_address_is_named(fresh: Path, nothing_listens: str) -> None:
    index = {"PIP_INDEX_URL": f"http://{nothing_listens}/simple"}
    for script in (("./trnspec", "--help"), ("scripts/setup",)):
        done = typed(fresh, *script, **index)
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, done.stdout) == (3, "")
        assert last.startswith(f"setup: pip failed: no connection to {nothing_listens}; check the network")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            "no space",
        ),
        ("npm error code ENOSPC\nnpm error nospc ENOSPC: write", "no space is left"),
        (
            "npm error code ECONNREFUSED\nnpm error request to http://127.0.0.1:9/aws-cdk failed, reason: connect",
            "no connection to 127.0.0.1:9;",
        ),
        (
            "Retrying after connection broken by 'ConnectTimeoutError'\nERROR: No matching distribution found for click",
            "no connection to PyPI;",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)\n"
            "ERROR: No matching distribution found for a==1",
            "PyPI has no version of a package, or was not reached; check the network",
        ),
        ("ERROR: No matching distribution found for click==8.5.1", "does not exist for this Python at PyPI"),
        ("Building wheel\n  error: subprocess-exited-with-error\n", "error: subprocess-exited-with-error"),
        ("", "nothing was said"),
    ],
)
def test_the_cause_is_not_the_last_line(log: str, said: str) -> None:
    assert said in cause(log)


def test_help_works_with_the_few_packages_of_its_own(fresh: Path) -> None:
    """Installed by name from the folder of this environment: nothing is fetched."""
    (site,) = (fresh / ".venv").glob("lib/python*/site-packages")
    ours = Path(installation.__file__).resolve().parents[2] / ".venv"
    (theirs,) = ours.glob("lib/python*/site-packages")
    for name in ("annotated_types", "click", "pydantic", "pydantic_core", "typing_inspection", "yaml"):
        (site / name).symlink_to(theirs / name)
    (site / "typing_extensions.py").symlink_to(theirs / "typing_extensions.py")
    shutil.copy(fresh / "requirements-first.txt", fresh / ".venv" / "first.txt")
    version = typed(fresh, "./trnspec", "--version")
    assert (version.returncode, version.stdout.split()[0], version.stderr) == (0, "trnspec", "")
    for verb in ("", "check", "new", "published", "step", "results"):
        done = typed(fresh, "./trnspec", *verb.split(), "--help")
        assert (done.returncode, done.stdout.split()[:2], done.stderr) == (0, ["Usage:", "trnspec"], "")
    wrong = typed(fresh, "./trnspec", "forecst", "--help")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "No such command 'forecst'. Did you mean 'forecast'?" in wrong.stderr
