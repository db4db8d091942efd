"""Compiled artifacts up to S3 and down to a disk, with every kind of interruption."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.s3.models import s3_backends

from tests.store.conftest import REGION, Interrupted
from trnspec.store import FILES, MARKER
from trnspec.store.__main__ import main
from trnspec.store.artifact import DIFFERENCES, MountedFolder, check, pull, push
from trnspec.store.bucket import BucketFolder, Incomplete, StoreError, Unreachable

KEY = "0123456789abcdef"
REQUIRED = ("neuron_config.json", "model.pt")
SHARD = "weights/tp0_sharded_checkpoint.safetensors"


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    folder = tmp_path / "compiled"
    (folder / "weights").mkdir(parents=True)
    (folder / "neuron_config.json").write_text(
        '{"neuron_config": {"speculation_length": 7, "async_mode": true}}'
    )
    (folder / "model.pt").write_bytes(b"graph" * 1000)
    (folder / SHARD).write_bytes(b"w" * 5000)
    return folder


@pytest.fixture
def store(compiled: Path) -> Callable[..., None]:
    def start(target: BucketFolder, *, key: str = KEY, baseline: BucketFolder | None = None) -> None:
        words: dict[str, Any] = {"inputs": '{"image": "x"}', "required": REQUIRED}
        push(compiled, target, key=key, baseline=baseline, declared=("speculation_length",), **words)

    return start


@pytest.mark.parametrize("mounted", [False, True])
def test_an_artifact_is_stored_whole_with_its_key_and_comes_back_as_it_was(
    folder: Any, store: Any, compiled: Path, tmp_path: Path, mounted: bool
) -> None:
    target: Any = folder()
    store(target)
    assert target.text(MARKER) == '{"key": "0123456789abcdef"}\n'
    assert json.loads(target.text("artifact_inputs.json")) == {"image": "x"}
    stored = check(target, key=KEY)
    assert {file.path for file in stored} == {*REQUIRED, SHARD, "artifact_inputs.json"}
    if mounted:
        pull(target, tmp_path / "mount", key=KEY)
        target = MountedFolder(tmp_path / "mount")
    down = tmp_path / "down"
    pull(target, down, key=KEY)
    assert check(MountedFolder(down), key=KEY) == stored
    for name in (*REQUIRED, SHARD):
        assert (down / name).read_bytes() == (compiled / name).read_bytes()
    assert not list(down.rglob("*.part"))


@pytest.mark.parametrize("steps", range(6))
def test_an_interrupted_upload_is_safe_to_repeat_and_a_finished_one_is_never_written_again(
    folder: Any, store: Any, compiled: Path, steps: int
) -> None:
    target, down = folder(), compiled.parent / "down"
    with pytest.raises(Unreachable):
        store(Interrupted(target, steps))
    assert target.text(MARKER) is None
    with pytest.raises(Incomplete, match="has no file COMPLETE"):
        check(target, key=KEY)
    (compiled / "model.pt").write_bytes(b"GRAPH" * 1000)  # the same size; compilers are not deterministic
    store(target)
    pull(target, down, key=KEY)
    assert (down / "model.pt").read_bytes() == b"GRAPH" * 1000
    store(Interrupted(target, 0))
    with pytest.raises(Incomplete, match="not key ffff"):
        store(target, key="ffff")


def test_half_a_compilation_or_one_that_may_not_be_read_is_not_stored(
    folder: Any, store: Any, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(path: Any) -> Any:
        if Path(path).name == "weights":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    target, real = folder(), os.scandir
    (compiled / "neff").mkdir()
    for graph in (None, "neff/empty.neff"):
        if graph:
            (compiled / graph).touch()
        with pytest.raises(Incomplete, match=r"\*\.neff: is missing or empty"):
            push(compiled, target, key=KEY, baseline=None, declared=(), inputs="{}", required=("**/*.neff",))
    assert target.sizes() == {}
    for name in REQUIRED:
        content = (compiled / name).read_bytes()
        (compiled / name).write_bytes(b"")
        with pytest.raises(Incomplete, match="compilation did not finish"):
            store(target)
        assert target.sizes() == {}
        (compiled / name).write_bytes(content)
    monkeypatch.setattr(os, "scandir", listed)
    with pytest.raises(Incomplete, match=r"weights: .*Permission denied.*give the group read access"):
        store(target)
    assert target.text(MARKER) is None


def test_what_differs_from_the_baseline_is_stored_declared_or_not(folder: Any, store: Any) -> None:
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


DAMAGED = (
    (MARKER, None, "has no file COMPLETE"),
    (MARKER, '{"key": "fedcba9876543210"}\n', "is of another arm"),
    (FILES, None, "has no list of its files, FILES.json"),
    (FILES, "{", "is not a list of files"),
    ("model.pt", "x", "model.pt: has 1 bytes, not 5000"),
    ("model.pt", None, "model.pt: is missing"),
)


@pytest.mark.slow
def test_check_finds_what_is_wrong_and_a_damaged_copy_never_gets_a_marker(
    folder: Any, store: Any, s3: Any, tmp_path: Path
) -> None:
    target, down = folder(), tmp_path / "down"
    store(target)
    for name, content, words in DAMAGED:
        pull(target, down, key=KEY)
        (down / name).unlink() if content is None else (down / name).write_text(content)
        with pytest.raises(Incomplete, match=words):
            check(MountedFolder(down), key=KEY)
    bucket, prefix = target.address.removeprefix("s3://").split("/", 1)
    s3.put_object(Bucket=bucket, Key=f"{prefix}/model.pt", Body=b"GRAPH" * 1000)
    with pytest.raises(Incomplete, match=r"model.pt: has another hash"):
        pull(target, tmp_path / "copy", key=KEY)
    assert not (tmp_path / "copy" / MARKER).exists()


@pytest.mark.parametrize(("parts", "said"), [(1, "Expected checksum"), (2, "model.pt: has another hash")])
def test_bytes_that_change_in_s3_are_found_by_its_own_hash_and_of_several_parts_by_the_hash_in_the_list(
    folder: Any, store: Any, s3: Any, compiled: Path, monkeypatch: pytest.MonkeyPatch, parts: int, said: str
) -> None:
    """moto computes the hash of an object of several parts as S3 does, and refuses no wrong one, which S3 does."""
    size, target = 5 * 2**20, folder()
    monkeypatch.setattr("trnspec.store.bucket._PART", size)
    (compiled / "model.pt").write_bytes(b"g" * (size * parts - 1))
    store(target)
    bucket, prefix = target.address.removeprefix("s3://").split("/", 1)
    where = {"Bucket": bucket, "Key": f"{prefix}/model.pt"}
    stored = b64encode(hashlib.sha256((compiled / "model.pt").read_bytes()).digest()).decode()
    assert (s3.head_object(**where, ChecksumMode="ENABLED")["ChecksumSHA256"] == stored) == (parts == 1)
    s3_backends[ACCOUNT]["aws"].buckets[bucket].keys[where["Key"]].value = b"G" * (size * parts - 1)
    with pytest.raises(StoreError, match=said):
        pull(target, compiled.parent / "down", key=KEY)
    assert not (compiled.parent / "down" / MARKER).exists()


def test_the_commands_end_with_their_exit_codes(
    folder: Any,
    compiled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(line: str) -> int:
        return main(f"{line} --region {REGION}".split())

    address, down, note = folder().address, tmp_path / "down", tmp_path / "note"
    monkeypatch.setenv("ARTIFACT_INPUTS", '{"image": "x"}')
    assert run(f"check {address} --key {KEY} --note {note}") == 0
    assert not note.exists()
    assert run(f"check {address} --key {KEY}") == 1
    pushed = f"push {compiled} --to {address} --key {KEY} --inputs-from ARTIFACT_INPUTS"
    assert run(pushed) == 2, "a dialect says what an artifact contains"
    assert run(f"{pushed} --require **/*.neff") == 1
    (compiled / "graph.neff").write_bytes(b"n")
    assert run(f"{pushed} --require **/*.neff") == 0
    assert run(f"check {address} --key {KEY} --note {note}") == 0
    assert note.exists()
    assert run(f"pull {address} --key {KEY} --to {down}") == 0
    assert run(f"check {down} --key {KEY}") == 0
    for path in (down, *down.rglob("*")):
        assert path.stat().st_mode & stat.S_IWGRP, f"{path}: the server's user could not write"
    assert run(f"get {address}/model.pt --sha256 {'0' * 64} --to {tmp_path / 'model'}") == 1
    assert not (tmp_path / "model").exists()
    capsys.readouterr()
    assert run(f"pull s3://no-such-bucket/x --to {down}") == 3
    assert run(f"pull s3:// --to {down}") == 2
    assert run("check s3://\x1b[2J/x") == 2
    assert run(f"restore s3://bucket --to {tmp_path / 'new'}") == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.isprintable() for line in told] == [True] * 4
