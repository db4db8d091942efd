"""What a new user types in a fresh clone, knowing `./trnspec --help` alone: each answer names the next command, and that works.

Takes about a minute of two processors and runs with NEW_USER=1, as `.ci/run` does. Nothing is installed: the clone has this
tree's .venv and node_modules.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.programs import judge

LOCKED = ("requirements.txt", "requirements-dev.txt", "package-lock.json")
pytestmark = pytest.mark.skipif(
    os.environ.get("NEW_USER") != "1", reason="a whole session, a minute: NEW_USER=1"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What is committed, in a folder of its own."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, capture_output=True)
    locked = hashlib.sha256(b"".join((folder / name).read_bytes() for name in LOCKED)).hexdigest()
    installed = (ROOT / ".venv" / "setup.sha256").read_text(encoding="utf-8").strip()
    assert installed == locked, "the clone would install into .venv; run: scripts/setup"
    for name in (".venv", "node_modules"):
        (folder / name).symlink_to((ROOT / name).resolve())
    return folder


def typed(line: str, *, folder: Path) -> str:
    """What a command prints, which must succeed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TRNSPEC"))}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=kept, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def next_commands(printed: str) -> list[str]:
    """The commands that an answer tells to type."""
    return re.findall(r"^(?:next|then)\b:? +(\./trnspec .+)$", printed, re.MULTILINE | re.IGNORECASE)


def test_own_prompts_come_to_an_answer_and_each_step_names_the_next(clone: Path, tmp_path: Path) -> None:
    texts = [f"Describe the harbour of a town in {number} sentences." for number in range(2, 12)]
    lines = [json.dumps({"prompt": text}) for text in texts]
    (tmp_path / "harbours.jsonl").write_text("\n".join(lines), encoding="utf-8")

    verbs = re.findall(r"^  (\w+) {2,}", typed("./trnspec --help", folder=clone), re.MULTILINE)
    assert {"new", "check", "demo", "results"} <= set(verbs)

    check, demo = next_commands(typed("./trnspec new mine --prompts ../harbours.jsonl", folder=clone))
    assert (check, demo) == ("./trnspec check experiments/mine.yaml", "./trnspec demo experiments/mine.yaml")
    assert "harbours" in typed(check, folder=clone)

    answer = typed(demo, folder=clone)
    (afterwards,) = next_commands(answer)
    judge(shlex.split(afterwards))
    assert re.search(r"^On AWS .*\$\d", answer, re.MULTILINE)
    (report,) = re.findall(r"^Report +(\S+)$", answer, re.MULTILINE)
    page = (clone / report).read_text(encoding="utf-8")
    assert "Qwen3-32B" in page
    assert "EMULATED" in page.upper()

    assert report in typed("./trnspec results", folder=clone)
    assert Path(report).parent.name in (clone / "results" / "index.html").read_text(encoding="utf-8")

    status = typed("git status --short", folder=clone).split()
    assert status == ["??", "experiments/mine.yaml"]
