"""Weights from a hub into S3, with every kind of interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.store.conftest import COMMIT, LATER, REGION, TOKEN, Interrupted, StandInHub
from trnspec.store import MARKER
from trnspec.store.__main__ import main
from trnspec.store.artifact import check
from trnspec.store.bucket import BucketFolder, Incomplete, StoredFile, StoreError, Unreachable
from trnspec.store.fetch import Folder, Hub, fetch, wanted

SERVED = (
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "tokenizer.json",
)
LARGE = [name for name in SERVED if name.endswith("safetensors")]


@pytest.fixture
def run(hub: StandInHub, tmp_path: Path) -> Callable[..., str]:
    """Fetches the hub's model, or what a folder in S3 holds."""

    def start(
        target: BucketFolder,
        revision: str | None = None,
        *,
        token: str | None = None,
        source: BucketFolder | None = None,
        **more: Any,
    ) -> str:
        model, place = (
            ("org/mine", Folder(source)) if source else ("org/model", Hub(endpoint=hub.url, token=token))
        )
        scratch = tmp_path / "scratch"
        return fetch(model, revision, hub=place, target=target, scratch=scratch, **more)

    return start


def test_what_a_server_reads_is_stored_once_with_its_commit_and_hashes(
    folder: Any, run: Any, hub: StandInHub, tmp_path: Path
) -> None:
    target = folder()
    assert run(target) == COMMIT
    marker = json.loads(target.text(MARKER))
    assert (marker["model"], marker["revision"]) == ("org/model", COMMIT)
    assert [entry["path"] for entry in marker["files"]] == list(SERVED)
    for entry in marker["files"]:
        content = hub.files[entry["path"]]
        assert (entry["size"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert {file.path for file in check(target, key=None)} == set(SERVED)
    left = [path.name for path in (tmp_path / "scratch").rglob("*") if path.name in SERVED]
    assert not left, "the disk holds one file at a time"
    hub.downloaded.clear()  # a finished folder is left alone
    hub.newest = LATER
    assert run(target) == COMMIT
    assert hub.downloaded == []


@pytest.mark.parametrize("steps", range(6))
def test_an_interruption_anywhere_leaves_no_marker_and_a_repetition_finishes(
    folder: Any, run: Any, hub: StandInHub, steps: int
) -> None:
    target = folder()
    with pytest.raises(Unreachable):
        run(Interrupted(target, steps))
    assert target.text(MARKER) is None
    hub.downloaded.clear()
    hub.newest = LATER  # the model moved on in between: two commits must not be mixed
    assert run(target) == (COMMIT if steps else LATER)
    stored = {name for name in SERVED[: max(steps - 1, 0)] if name in LARGE}
    assert stored.isdisjoint(hub.downloaded)
    assert {file.path for file in check(target, key=None)} == set(SERVED)


def test_an_interrupted_download_continues(folder: Any, run: Any, hub: StandInHub) -> None:
    target, hub.broken_after = folder(), 100_000
    with suppress(Unreachable):
        run(target)
    run(target)
    assert {file.path for file in check(target, key=None)} == set(SERVED)


def test_a_folder_of_another_commit_is_refused_begun_or_whole(folder: Any, run: Any) -> None:
    target = folder()
    with pytest.raises(Unreachable):
        run(Interrupted(target, 2))
    with pytest.raises(Incomplete, match=f"has files of commit {COMMIT}, not {LATER}"):
        run(target, LATER)
    run(target)
    with pytest.raises(Incomplete, match=f"has org/model at {COMMIT}"):
        run(target, LATER)


def test_a_gated_model_an_unknown_revision_and_an_unknown_model_say_what_to_do(
    folder: Any, run: Any, hub: StandInHub
) -> None:
    with pytest.raises(StoreError, match="has no revision nonsense"):
        run(folder(), "nonsense")
    with pytest.raises(StoreError, match="org/other: does not exist, or is private"):
        Hub(endpoint=hub.url).commit("org/other", None)
    with pytest.raises(Unreachable, match=r"org/model: .* repeat the command to continue"):
        Hub(endpoint="http://127.0.0.1:1").commit("org/model", None)
    hub.gated = True
    with pytest.raises(StoreError, match=r"is gated; accept its terms .* token_secret"):
        run(folder())
    with pytest.raises(StoreError, match="its token has no access"):
        run(folder(), token="hf_somebody-else")
    assert run(folder(), token=TOKEN) == COMMIT


def _filled(source: BucketFolder, hub: StandInHub) -> BucketFolder:
    for name, content in hub.files.items():
        source.put_text(name, content.decode())
    return source


@pytest.mark.slow
def test_a_folder_in_s3_is_copied_as_a_model_is_and_a_hash_stands_for_its_commit(
    folder: Any, run: Any, hub: StandInHub, tmp_path: Path
) -> None:
    source, target, other = _filled(folder(), hub), folder(), folder()
    source.put_text("checkpoint-500/model.safetensors", "an earlier state")
    commit = run(target, source=source)
    assert commit.startswith("etags-")
    assert {file.path for file in check(target, key=None)} == set(SERVED)
    assert json.loads(target.text(MARKER))["revision"] == commit
    assert target.text(LARGE[0]) == hub.files[LARGE[0]].decode()
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
    with pytest.raises(Unreachable):
        run(Interrupted(other, 2), source=source)
    source.put_text(LARGE[1], "trained further")
    with pytest.raises(Incomplete, match=f"has files of commit {commit}, not etags-"):
        run(other, source=source)
    assert run(folder(), source=source) != commit


def test_a_folder_that_changes_while_it_is_read_is_not_mixed(folder: Any, run: Any, hub: StandInHub) -> None:
    source, target = _filled(folder(), hub), folder()
    download = source.download

    def restless(name: str, target: Path) -> None:
        download(name, target)
        source.put_text(name, "trained further")

    source.download = restless  # pyrefly: ignore[method-assign]  # of this store alone
    with pytest.raises(Incomplete, match="changed while it was read"):
        run(target, source=source)
    assert target.text(MARKER) is None


EXPECTED = {"hidden_size": 5120, "num_key_value_heads": 8, "head_dim": 128, "quantization_config": None}
RIGHT = {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8}
CONFIGS = (
    (json.dumps(RIGHT | {"hidden_size": 4096}), "hidden_size 4096, not 5120"),
    (
        json.dumps(RIGHT | {"hidden_size": 1, "head_dim": 2}),
        "hidden_size 1, not 5120; head_dim 2, not 128; correct `like`",
    ),
    (json.dumps(RIGHT | {"quantization_config": {"bits": 4}}), r"quantization_config {'bits': 4}, not None"),
    (json.dumps(RIGHT | {"num_key_value_heads": None}), "num_key_value_heads None, not 8"),
    *((text, "its config.json has hidden_size None, not 5120") for text in ("", "[]", "7", "{", "null")),
)


@pytest.mark.slow
def test_a_model_of_another_shape_than_declared_is_refused_before_anything_is_stored(
    folder: Any, run: Any
) -> None:
    source, target = folder(), folder()
    with pytest.raises(StoreError, match=f"{source.address}: has no files that a server reads"):
        run(target, source=source)
    source.put_text("model.safetensors", "weights")
    with pytest.raises(StoreError, match=r"has no config.json"):
        run(target, source=source, expected=EXPECTED)
    for text, words in CONFIGS:
        source.put_text("config.json", text)
        with pytest.raises(StoreError, match=words) as caught:
            run(target, source=source, expected=EXPECTED)
        assert "\n" not in str(caught.value)
        assert target.sizes() == {}
    source.put_text("config.json", json.dumps(RIGHT))
    run(target, source=source, expected=EXPECTED)


def test_pickled_weights_are_taken_only_without_a_safer_format() -> None:
    pickled = StoredFile("pytorch_model.bin", 1, "0" * 64)
    config, safe = StoredFile("config.json", 1, ""), StoredFile("model.safetensors", 1, "0" * 64)
    assert wanted([pickled, config]) == [config, pickled]
    assert wanted([pickled, safe, config]) == [config, safe]


def test_the_command_reads_the_token_from_a_file_and_compares_what_a_folder_holds(
    folder: Any,
    hub: StandInHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("trnspec.store.fetch.Hub", partial(Hub, endpoint=hub.url))
    hub.gated = True
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")

    def run(line: str, *words: str) -> int:
        return main([*f"fetch --scratch {tmp_path / 's'} --region {REGION} {line}".split(), *words])

    gated = f"--model org/model --to {folder().address}"
    assert run(gated) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert run(f"{gated} --token-file {token}") == 0
    assert capsys.readouterr().out == f"org/model: complete at {COMMIT}\n"
    assert run(f"{gated} --token-file {tmp_path / 'none'}") == 2
    capsys.readouterr()
    mine = f"--model org/mine --to {folder().address} --from {_filled(folder(), hub).address}"
    assert run(mine, "--expect", '{"hidden_size": 5120}') == 2
    assert "org/mine: its config.json has hidden_size None, not 5120" in capsys.readouterr().err
    assert run(mine) == 0
    assert capsys.readouterr().out.startswith("org/mine: complete at etags-")
    assert run(mine, "--expect", "{") == 2
