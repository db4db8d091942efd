"""Output that cannot be written, a disk without room, names and texts that would move the cursor."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.benchmark.conftest import Captured, WritePlan
from tests.benchmark.measure.test_run import nothing_is_lost_or_there_twice
from tests.conftest import ROOT
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure import journal
from trnspec.core.console import print_table
from trnspec.core.findings import Finding, Misuse, Outside
from trnspec.operations import __main__ as operations
from trnspec.operations import status

DOORS = {
    **{verb: f"-m trnspec.operations {verb} --help" for verb in ("measure", "demo")},
    "no verb": "-m trnspec.operations",
    "checked": "-m trnspec.operations check",
    "refused": "-m trnspec.operations check --json nothing.yaml",
    "ledger": "-m trnspec.operations forecast --json",
    "store": "-m trnspec.store --help",
    "manifests": "-m cdk8s_charts --help",
}
FORGED = "name\x1b]0;owned\x07\x9b31m\u202e\x1b[2J"
NAMED = """
-m operations check {}.yaml
-m operations preflight {}.yaml
-m operations check {}
-m benchmark report {}
-m benchmark run --out out --plan {}
-m experiment check {}
-m lab {}
-m store check {}
-m operations {}
"""
TEXTS = {
    "clears the screen": "\x1b[2J",
    "goes back to the start of the line": "a\rstatus: fine",
    "one byte for an escape": "\x9b31m",
    "turns the direction": "\u202egnp.exe",
    "another kind of line end": "a\u2028status: fine",
    "half a character": "\ud800",
    "forges lines": "a\nstatus: fine\n\x1b[31mstatus: all is well",
}
WRITE = "from pathlib import Path; from trnspec.core.files import write_whole; write_whole(Path('plan.json'), '{}')"
NEW = "import sys; from trnspec.operations.__main__ import main; sys.exit(main(['new', 'mine']))"


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = ["bash", "-c", f"set -o pipefail; {line.replace('PYTHON', f'{sys.executable} -P')}"]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_output_that_cannot_be_written_is_one_line(door: str, tmp_path: Path) -> None:
    full = typed(f"PYTHON {DOORS[door]} > /dev/full", tmp_path)
    *before, last = full.stderr.splitlines()
    assert (full.returncode, before[1:]) == (3, []), full.stderr
    assert "standard output cannot be written (No space left on device)" in last
    if door in ("no verb", "store"):
        closed = typed(f"PYTHON {DOORS[door]} >&-", tmp_path)
        assert (closed.returncode, len(closed.stderr.splitlines())) == (3, 1), closed.stderr
        assert "standard output cannot be written (closed)" in closed.stderr
        left = typed(f"PYTHON {DOORS[door]} | (exec <&-; sleep 0.1)", tmp_path)
        assert (left.returncode, left.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("line", NAMED.strip().splitlines())
def test_a_name_with_control_characters_is_shown_and_not_obeyed(line: str, tmp_path: Path) -> None:
    done = typed("PYTHON " + line.format(f"'{FORGED}'"), tmp_path)
    assert "name" in done.stdout + done.stderr
    assert done.returncode in (0, 1, 2)
    assert all(one.isprintable() for one in (done.stdout + done.stderr).splitlines())


@pytest.mark.parametrize("error", [Outside, ValueError])
@pytest.mark.parametrize("what", TEXTS)
def test_what_a_verb_prints_moves_nothing_and_its_error_is_one_line(
    what: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    @click.command()
    def said() -> int:
        print_table(("stack", "why"), [("qwen3-32b", TEXTS[what]), (TEXTS[what], "fine")])
        raise error(f"AWS said {TEXTS[what]}")

    monkeypatch.setattr(status, "command", said)
    assert operations.main(["status"]) == 3
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert len(err.splitlines()) == 1


def test_of_many_problems_the_first_are_said_and_none_is_longer_than_is_read() -> None:
    long = "x" * 600_000
    told = Misuse(*(Finding(long, long, long, long) for _ in range(3000)))
    assert len(told.lines) == 101
    assert told.lines[-1] == "there are more problems than these 100; fix these first"
    assert max(map(len, told.lines)) < 5000
    assert max(len(str(value)) for one in told.as_json() for value in one.values()) < 5000


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (NEW, 2, "mine.yaml: cannot be written (File too large); choose another NAME"),
        (WRITE, 1, "File too large: 'plan.json'"),
    ],
)
def test_without_room_nothing_is_left_behind(program: str, code: int, said: str, tmp_path: Path) -> None:
    done = typed(f'ulimit -f 0; PYTHON -c "{program}"', tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("room", "code"), [(500, 3), (60_000, 3), (1_000_000, 0)])
def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_keeps_what_is_there(
    room: int, code: int, write_plan: WritePlan, tmp_path: Path, capsys: Captured
) -> None:
    out, before = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    command = f"run --plan {write_plan(only='raw')} --out {out} --questions none --exit-zero".split()
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert main(command) == code
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refusals = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("trnspec.benchmark run: ")
    ]
    assert ["File too large; what is there is kept" in line for line in refusals] == [True] * (code == 3)
    assert list(out.rglob("*.part")) == []
    kept = recorded(out) if room > 500 else []
    assert kept or room == 500
    assert main(command) == 0
    assert recorded(out)[: len(kept)] == kept
    nothing_is_lost_or_there_twice(out, classes=1)


def recorded(out: Path) -> list[tuple[str, str]]:
    return [(r.arm, r.pair_id) for r in journal.read(out).requests if r.phase == "measured"]
