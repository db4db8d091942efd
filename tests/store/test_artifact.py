"""Compiled artifacts up to S3 and down to a disk, with every kind of interruption."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store import FILES, MARKER
from store.__main__ import main
from store.artifact import DIFFERENCES, push
from store.bucket import BucketFolder, Incomplete, Unreachable
from store.pull import MountedFolder, check, pull
from tests.store.conftest import REGION, Interrupted

KEY = "0123456789abcdef"
REQUIRED = ("neuron_config.json", "model.pt")


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    folder = tmp_path / "compiled"
    (folder / "weights").mkdir(parents=True)
    (folder / "neuron_config.json").write_text(
        '{"neuron_config": {"speculation_length": 7, "async_mode": true}}'
    )
    (folder / "model.pt").write_bytes(b"graph" * 1000)
    (folder / "weights" / "tp0_sharded_checkpoint.safetensors").write_bytes(b"w" * 5000)
    return folder


@pytest.fixture
def store(compiled: Path) -> Callable[..., None]:
    def start(target: BucketFolder, *, key: str = KEY, baseline: BucketFolder | None = None) -> None:
        push(
            compiled,
            target,
            key=key,
            inputs='{"image": "x"}',
            required=REQUIRED,
            baseline=baseline,
            declared=("speculation_length",),
            report=lambda line: None,
        )

    return start


def test_an_artifact_is_stored_whole_and_marked_with_its_key(folder: Any, store: Any) -> None:
    target = folder()
    store(target)
    assert target.text(MARKER) == '{"key": "0123456789abcdef"}\n'
    assert json.loads(target.text("artifact_inputs.json")) == {"image": "x"}
    assert {file.path for file in check(target, key=KEY)} == {  # each as long as it was
        "neuron_config.json",
        "model.pt",
        "weights/tp0_sharded_checkpoint.safetensors",
        "artifact_inputs.json",
    }


@pytest.mark.parametrize("steps", range(6))
def test_an_interrupted_upload_is_safe_to_repeat_and_a_finished_one_is_never_written_again(
    folder: Any, store: Any, compiled: Path, steps: int
) -> None:
    target, down = folder(), compiled.parent / "down"
    with pytest.raises(Unreachable):
        store(Interrupted(target, steps))
    assert target.text(MARKER) is None
    with pytest.raises(Incomplete, match="has no COMPLETE"):
        check(target, key=KEY)
    (compiled / "model.pt").write_bytes(b"GRAPH" * 1000)  # the same size; compilers are not deterministic
    store(target)
    pull(target, down, key=KEY, report=lambda line: None)
    assert (down / "model.pt").read_bytes() == b"GRAPH" * 1000
    store(Interrupted(target, 0))
    with pytest.raises(Incomplete, match="not key ffff"):
        store(target, key="ffff")


@pytest.mark.parametrize("name", REQUIRED)
def test_half_a_compilation_is_not_stored(folder: Any, store: Any, compiled: Path, name: str) -> None:
    (compiled / name).write_bytes(b"")
    target = folder()
    with pytest.raises(Incomplete, match="compilation did not finish"):
        store(target)
    assert target.sizes() == {}


def test_a_folder_without_read_permission_is_never_left_out(
    folder: Any, store: Any, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(path: Any) -> Any:
        if Path(path).name == "weights":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    real = os.scandir
    monkeypatch.setattr(os, "scandir", listed)
    target = folder()
    with pytest.raises(Incomplete, match=r"weights: .*Permission denied.*give the group read access"):
        store(target)
    assert target.text(MARKER) is None


def test_what_differs_from_the_baseline_is_stored_declared_or_not(
    folder: Any, store: Any, compiled: Path
) -> None:
    baseline, target = folder(), folder()
    baseline.put_text(
        "neuron_config.json", '{"neuron_config": {"speculation_length": 0, "async_mode": false}}'
    )
    store(target, baseline=baseline)
    stored = json.loads(target.text(DIFFERENCES))
    assert [(entry["path"], entry["declared"]) for entry in stored["differences"]] == [
        ("neuron_config.async_mode", False),
        ("neuron_config.speculation_length", True),
    ]
    assert stored["differences"][0]["baseline"] is False
    store(other := folder(), baseline=folder())
    assert json.loads(other.text(DIFFERENCES))["compared"] is False, "a baseline that is not compiled yet"


@pytest.mark.parametrize("mounted", [False, True])
def test_a_pulled_folder_is_the_stored_one(
    folder: Any, store: Any, compiled: Path, tmp_path: Path, mounted: bool
) -> None:
    target: Any = folder()
    store(target)
    if mounted:
        pull(target, tmp_path / "mount", key=KEY, report=lambda line: None)
        target = MountedFolder(tmp_path / "mount")
    down = tmp_path / "down"
    pull(target, down, key=KEY, report=lambda line: None)
    assert check(MountedFolder(down), key=KEY) == check(target, key=KEY)
    for name in (*REQUIRED, "weights/tp0_sharded_checkpoint.safetensors"):
        assert (down / name).read_bytes() == (compiled / name).read_bytes()
    assert not list(down.rglob("*.part"))


def test_a_damaged_copy_never_gets_a_marker(folder: Any, store: Any, s3: Any, tmp_path: Path) -> None:
    target = folder()
    store(target)
    bucket, prefix = target.address.removeprefix("s3://").split("/", 1)
    s3.put_object(Bucket=bucket, Key=f"{prefix}/model.pt", Body=b"GRAPH" * 1000)
    with pytest.raises(Incomplete, match=r"model.pt: content differs"):
        pull(target, tmp_path / "down", key=KEY, report=lambda line: None)
    assert not (tmp_path / "down" / MARKER).exists()


DAMAGED = (
    (MARKER, None, "has no COMPLETE"),
    (MARKER, '{"key": "fedcba9876543210"}\n', "was made for"),
    (FILES, None, "has no FILES.json"),
    (FILES, "{", "is not a list of files"),
    ("model.pt", "x", r"model.pt: 1 bytes, 5000 were stored"),
    ("model.pt", None, "model.pt: no bytes"),
)


def test_check_finds_what_is_wrong(folder: Any, store: Any, tmp_path: Path) -> None:
    target, down = folder(), tmp_path / "down"
    store(target)
    for name, content, words in DAMAGED:
        pull(target, down, key=KEY, report=lambda line: None)
        (down / name).unlink() if content is None else (down / name).write_text(content)
        with pytest.raises(Incomplete, match=words):
            check(MountedFolder(down), key=KEY)


def test_the_commands_end_with_their_exit_codes(
    folder: Any,
    compiled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where, address = ["--region", REGION], folder().address
    monkeypatch.setenv("ARTIFACT_INPUTS", '{"image": "x"}')
    note = tmp_path / "note"
    assert main(["check", address, "--key", KEY, "--note", str(note), *where]) == 0
    assert not note.exists()
    assert main(["check", address, "--key", KEY, *where]) == 1
    inputs = ["--inputs-from", "ARTIFACT_INPUTS"]
    assert main(["push", str(compiled), "--to", address, "--key", KEY, *inputs, *where]) == 0
    assert main(["check", address, "--key", KEY, "--note", str(note), *where]) == 0
    assert note.exists()
    assert main(["pull", address, "--key", KEY, "--to", str(tmp_path / "down"), *where]) == 0
    assert main(["check", str(tmp_path / "down"), "--key", KEY]) == 0
    for path in (tmp_path / "down", *(tmp_path / "down").rglob("*")):
        assert path.stat().st_mode & stat.S_IWGRP, f"{path}: the server's user could not write"
    assert (
        main(["get", f"{address}/model.pt", "--sha256", "0" * 64, "--to", str(tmp_path / "m"), *where]) == 1
    )
    assert not (tmp_path / "m").exists()
    capsys.readouterr()
    assert main(["pull", "s3://no-such-bucket/x", "--to", str(tmp_path / "down"), *where]) == 3
    assert main(["pull", "s3://", "--to", str(tmp_path / "down"), *where]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("verb", ["check", "restore"])
@pytest.mark.parametrize("address", ["s3://\x1b[2J/x", "s3://bucket"])
def test_an_address_that_is_not_one_is_refused_in_one_line(
    address: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--to", str(tmp_path / "new")] if verb == "restore" else []
    assert main([verb, address, *more]) == 2
    told = capsys.readouterr().err
    assert (told.count("\n"), told.strip().isprintable()) == (1, True)
