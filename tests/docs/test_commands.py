"""Each command in a guide exists and takes what the guide gives it; what can run here is run. What is asked for help does not act."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.blocks import MARKERS, command_blocks, commands_of, documents, inline_commands
from tests.docs.programs import Wrong, judge, module_of, run

BLOCKS = {path: command_blocks(path) for path in documents()}
RUNNABLE = {
    path: found
    for path, blocks in BLOCKS.items()
    if path.name != "README.md" and (found := [block for block in blocks if not block.marker])
}
"""Without the README, whose blocks `test_readme_blocks.py` types in a copy of the checkout."""


LEFT_OUT = re.compile(
    "arguments are required|Missing (argument|option)|(No such command|invalid choice:) 'VERB'"
)
"""What a sentence may not say of a command that it names."""


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_command_exists_and_takes_its_options(path: Path) -> None:
    for block in BLOCKS[path]:
        assert block.commands, f"{block}: no command under its marker"
        first = block.text.strip().partition("\n")[0]
        assert block.marker or not first.startswith(("# needs", "# takes")), f"{block}: markers are {MARKERS}"
        for command in block.commands:
            assert not (said := _refused(command)), f"{block}: {said}"
    for words in inline_commands(path):
        said = _refused(words)
        assert not said or LEFT_OUT.search(said), f"{path.name}: `{' '.join(words)}`: {said}"


def test_every_guide_bootstraps_with_the_projects_policies() -> None:
    """Plain `cdk bootstrap` makes an administrator of whoever may deploy."""
    given = [one for blocks in BLOCKS.values() for block in blocks for one in block.commands]
    given += [words for path in documents() for words in inline_commands(path)]
    found = [one for one in given if "bootstrap" in one and any(word.startswith("aws://") for word in one)]
    assert found
    for command in found:
        assert {"--cloudformation-execution-policies", "--custom-permissions-boundary"} <= {*command}


def _refused(command: Sequence[str]) -> str:
    try:
        judge(command)
    except Wrong as wrong:
        return str(wrong) or repr(wrong)
    return ""


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.name)
def test_what_needs_nothing_is_executed_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for block in RUNNABLE[path]:
        for line in filter(None, block.text.replace("\\\n", " ").splitlines()):
            commands = commands_of(line)
            if not commands:
                continue
            assert len(commands) == 1, f"{block}: one command a line where a test executes it: {line}"
            (command,) = commands
            module = module_of(command)
            if module is not None:
                code = run(*module)
            else:
                assert command[0] in ("echo", "cp"), f"{block}: mark it with one of {MARKERS}: {line}"
                code = subprocess.run(["bash", "-c", line], check=False).returncode
            assert code == 0, f"{block}: {line}\n{capsys.readouterr()}"


@pytest.mark.parametrize(
    "line",
    [
        "./scripts/nothing",
        "./trnspec forecast --experimant experiments/qwen3-32b.yaml",
        ".venv/bin/python -m trnspec.benchmark advise --yields k+2 results/x",
        ".venv/bin/npx cdk deploy --all -c adminz=arn:aws:iam::111122223333:role/you",
        "make everything",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    (command,) = commands_of(line)
    assert _refused(command)


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("script", ["setup", "test", "policy", "measure"])
def test_help_is_shown_in_a_fresh_clone_and_nothing_else_happens(
    script: str, option: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    before = sorted(tmp_path.rglob("*"))
    # Without anything on PATH but what shows a text, whatever else it tried would fail.
    done = subprocess.run(
        ["/bin/bash", f"scripts/{script}", option],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 0 < len(done.stdout.splitlines()) < 20
    assert sorted(tmp_path.rglob("*")) == before
