"""What a new user types in a fresh clone, knowing `./trnspec --help` alone: each answer names the next command, and that works.

Takes about four minutes of two processors and the network, and runs with NEW_USER=1, as `.ci/run` does. The clone is set up
with the system's own Python where that is new enough: Debian 12 has 3.11.2, older than what developers have.
"""

from __future__ import annotations

import json
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
from tests.docs.programs import judge

SYSTEM = "/usr/bin/python3"


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """What is committed, in a folder of its own, set up as `./trnspec` does at the first use."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, capture_output=True)
    new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    own = Path(SYSTEM).exists() and subprocess.run([SYSTEM, "-c", new_enough], check=False).returncode == 0
    typed(f"PYTHON={SYSTEM} scripts/setup" if own else "scripts/setup", folder=folder)
    yield folder
    for name in (".venv", "node_modules"):
        shutil.rmtree(folder / name)


def typed(line: str, *, folder: Path) -> str:
    """What a command prints, which must succeed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TRNSPEC"))}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=kept, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def test_a_python_that_cannot_make_an_environment_is_refused_with_the_package_to_install(
    tmp_path: Path,
) -> None:
    (tmp_path / "ensurepip.py").write_text(
        "raise ImportError", encoding="utf-8"
    )  # Debian without python3-venv
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup", *("uv.lock", "package-lock.json")):
        shutil.copy(ROOT / name, tmp_path / name)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        [tmp_path / "scripts/setup"], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert done.stderr.endswith("sudo apt install python3-venv\n")
    assert not (tmp_path / ".venv").exists()


@pytest.mark.skipif(os.environ.get("NEW_USER") != "1", reason="set-up, minutes: NEW_USER=1")
def test_the_commands_of_a_build_work_in_its_sources_up_to_the_first_call_to_aws(tmp_path: Path) -> None:
    """As CodeBuild gets them: the asset of a synthesis of what is committed, without permissions, in an empty home. The first call is to
    an address where nobody answers."""
    clone, sources, home = tmp_path / "clone", tmp_path / "sources", tmp_path / "home"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, capture_output=True)
    home.mkdir()
    typed("scripts/setup && CDK_OUTDIR=cdk.out CDK_VALIDATION=false .venv/bin/python app.py", folder=clone)
    (template,) = (clone / "cdk.out").glob("qwen3-32b-run.template.json")
    resources = json.loads(template.read_text(encoding="utf-8"))["Resources"].values()
    (project,) = (one["Properties"] for one in resources if one["Type"] == "AWS::CodeBuild::Project")
    (asset,) = (path for path in (clone / "cdk.out").iterdir() if (path / "trnspec").exists())
    asset.rename(sources)
    shutil.rmtree(clone)
    for path in (sources / "trnspec", sources / "scripts/setup"):
        path.chmod(0o644)
    phases = json.loads(project["Source"]["BuildSpec"])["phases"]
    lines = [line for phase in phases.values() for line in phase["commands"]]
    given = {one["Name"]: one["Value"] for one in project["Environment"]["EnvironmentVariables"]}
    given |= {"HOME": str(home), "PATH": os.environ["PATH"], "CODEBUILD_BUILD_ID": "qwen3-32b-run:1"}
    given |= {"RUN_ARGUMENTS": "experiments/qwen3-32b.yaml --hours 4", "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        ["bash", "-c", "set -e\n" + "\n".join(lines)],
        cwd=sources, env=given, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "trnspec.operations.running.in_build: sts:GetCallerIdentity in us-east-2: " in done.stderr
    for name in (".venv", "node_modules"):
        shutil.rmtree(sources / name)


def next_commands(printed: str) -> list[str]:
    """The commands that an answer tells to type."""
    return re.findall(r"^(?:next|then)\b:? +(\./trnspec .+)$", printed, re.MULTILINE | re.IGNORECASE)


@pytest.mark.skipif(
    os.environ.get("NEW_USER") != "1", reason="set-up and a whole session, minutes: NEW_USER=1"
)
def test_own_prompts_come_to_an_answer_and_each_step_names_the_next(clone: Path, tmp_path: Path) -> None:
    texts = [f"Describe the harbour of a town in {number} sentences." for number in range(2, 12)]
    lines = [json.dumps({"prompt": text}) for text in texts]
    (tmp_path / "harbours.jsonl").write_text("\n".join(lines), encoding="utf-8")

    known = re.findall(r"^  (\w+) {2,}", typed("./trnspec --help", folder=clone), re.MULTILINE)
    assert {"new", "check", "demo", "results"} <= set(known)

    verbs = ("check", "forecast", "demo")
    told = next_commands(typed("./trnspec new mine --prompts ../harbours.jsonl", folder=clone))
    assert told == [f"./trnspec {verb} experiments/mine.yaml" for verb in verbs]
    check, forecast, demo = told
    assert "harbours" in typed(check, folder=clone)
    assert typed(forecast, folder=clone).startswith("We do not know your acceptance yet")

    answer = typed(f"{demo} --max-tokens 16", folder=clone)  # in real time; `.ci/run` has a whole one
    (afterwards,) = next_commands(answer)
    judge(shlex.split(afterwards))
    assert re.search(r"^On AWS .*\$\d", answer, re.MULTILINE)
    (report,) = re.findall(r"^Report +(\S+)$", answer, re.MULTILINE)
    page = (clone / report).read_text(encoding="utf-8")
    assert "Qwen3-32B" in page
    assert "EMULATED" in page.upper()

    assert Path(report).parent.name in typed("./trnspec results", folder=clone)

    review = typed("./trnspec review HEAD 2>&1", folder=clone)
    assert "experiments/mine.yaml: not compared, because git does not track it" in review
    assert review.endswith("Nothing changes in what is deployed.\n")

    status = typed("git status --short", folder=clone).split()
    assert status == ["??", "experiments/mine.yaml"]
