"""Weights from a hub into S3, with every kind of interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store import MARKER
from store.__main__ import main
from store.bucket import BucketFolder, Incomplete, StoredFile, StoreError, Unreachable
from store.fetch import Folder, Hub, fetch, wanted
from store.pull import check
from tests.store.conftest import REGION, Interrupted
from tests.store.hub import COMMIT, LATER, TOKEN, StandInHub

SERVED = (
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "tokenizer.json",
)
LARGE = [name for name in SERVED if name.endswith("safetensors")]


@pytest.fixture
def run(hub: StandInHub, tmp_path: Path) -> Callable[..., str]:
    def start(target: BucketFolder, revision: str | None = None, token: str | None = None) -> str:
        return fetch(
            "org/model",
            revision,
            hub=Hub(endpoint=hub.url, token=token),
            target=target,
            scratch=tmp_path / "scratch",
            report=lambda line: None,
        )

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
    hub.broken_after = 100_000
    target = folder()
    try:
        run(target)
    except Unreachable:
        run(target)
    assert {file.path for file in check(target, key=None)} == set(SERVED)


def test_a_folder_of_another_commit_is_refused_begun_or_whole(folder: Any, run: Any) -> None:
    target = folder()
    with pytest.raises(Unreachable):
        run(Interrupted(target, 2))
    with pytest.raises(Incomplete, match=f"begun with commit {COMMIT}, asked for {LATER}"):
        run(target, LATER)
    run(target)
    with pytest.raises(Incomplete, match=f"holds org/model at {COMMIT}"):
        run(target, LATER)


def test_a_gated_model_says_what_to_do(folder: Any, run: Any, hub: StandInHub) -> None:
    hub.gated = True
    with pytest.raises(StoreError, match=r"is gated; accept its terms .* weights.token_secret"):
        run(folder())
    with pytest.raises(StoreError, match="its token has no access"):
        run(folder(), token="hf_somebody-else")
    assert run(folder(), token=TOKEN) == COMMIT


def test_an_unknown_revision_and_an_unknown_model_are_one_line(
    folder: Any, run: Any, hub: StandInHub, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="has no revision nonsense"):
        run(folder(), "nonsense")
    with pytest.raises(StoreError, match="org/other: no such model"):
        Hub(endpoint=hub.url).commit("org/other", None)


@pytest.fixture
def run_from(folder: Any, tmp_path: Path) -> Callable[..., str]:
    def start(source: BucketFolder, target: BucketFolder, **more: Any) -> str:
        scratch, quiet = tmp_path / "scratch", lambda line: None
        return fetch(
            "org/mine", None, hub=Folder(source), target=target, scratch=scratch, report=quiet, **more
        )

    return start


def _filled(source: BucketFolder, hub: StandInHub) -> BucketFolder:
    for name, content in hub.files.items():
        source.put_text(name, content.decode())
    return source


def test_a_folder_in_s3_is_copied_as_a_model_is_and_a_hash_stands_for_its_commit(
    folder: Any, run_from: Any, hub: StandInHub, tmp_path: Path
) -> None:
    source, target, other = _filled(folder(), hub), folder(), folder()
    source.put_text("checkpoint-500/model.safetensors", "an earlier state")
    commit = run_from(source, target)
    assert commit.startswith("etags-")
    assert {file.path for file in check(target, key=None)} == set(SERVED)
    assert json.loads(target.text(MARKER))["revision"] == commit
    assert target.text(LARGE[0]) == hub.files[LARGE[0]].decode()
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
    with pytest.raises(Unreachable):
        run_from(source, Interrupted(other, 2))
    source.put_text(LARGE[1], "trained further")
    with pytest.raises(Incomplete, match=f"begun with commit {commit}, asked for etags-"):
        run_from(source, other)
    assert run_from(source, folder()) != commit


def test_a_folder_that_changes_while_it_is_read_is_not_mixed(
    folder: Any, run_from: Any, hub: StandInHub
) -> None:
    source, target = _filled(folder(), hub), folder()

    class Restless(BucketFolder):
        def __init__(self) -> None:
            self.__dict__.update(source.__dict__)

        def download(self, name: str, target: Path) -> None:
            super().download(name, target)
            self.put_text(name, "trained further")

    with pytest.raises(Incomplete, match="was changed while it was read"):
        run_from(Restless(), target)
    assert target.text(MARKER) is None


EXPECTED = {"hidden_size": 5120, "num_key_value_heads": 8, "head_dim": 128, "quantization_config": None}
CONFIGS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"hidden_size": 4096}, "hidden_size 4096, not 5120"),
    ({"hidden_size": 1, "head_dim": 2}, "hidden_size 1, not 5120; head_dim 2, not 128; correct `like`"),
    ({"quantization_config": {"bits": 4}}, r"quantization_config {'bits': 4}, not None"),
    ({"num_key_value_heads": None}, "num_key_value_heads None, not 8"),
)


def test_a_model_of_another_shape_than_declared_is_refused_before_anything_is_stored(
    folder: Any, run_from: Any
) -> None:
    source, target = folder(), folder()
    with pytest.raises(StoreError, match=f"{source.address}: holds no weights; check its name"):
        run_from(source, target)
    source.put_text("model.safetensors", "weights")
    with pytest.raises(StoreError, match=r"has no config.json"):
        run_from(source, target, expected=EXPECTED)
    right = {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8}
    for changes, words in CONFIGS:
        source.put_text("config.json", json.dumps(right | changes))
        with pytest.raises(StoreError, match=words) as caught:
            run_from(source, target, expected=EXPECTED)
        assert "\n" not in str(caught.value)
        assert target.sizes() == {}
    source.put_text("config.json", json.dumps(right))
    run_from(source, target, expected=EXPECTED)


def test_a_broken_configuration_is_one_line(folder: Any, run_from: Any) -> None:
    source = folder()
    source.put_text("model.safetensors", "weights")
    for text in ("", "[]", "7", "{", "null"):
        source.put_text("config.json", text)
        with pytest.raises(StoreError, match=r"its config.json has hidden_size None, not 5120"):
            run_from(source, folder(), expected=EXPECTED)


def test_the_command_fetches_from_a_folder_and_compares(
    folder: Any, hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _filled(folder(), hub)
    command = ["fetch", "--model", "org/mine", "--to", folder().address, "--scratch", str(tmp_path / "s")]
    command += ["--from", source.address, "--region", REGION]
    assert main([*command, "--expect", '{"hidden_size": 5120}']) == 2
    assert "org/mine: its config.json has hidden_size None, not 5120" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("org/mine: complete at etags-")
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--expect", "{"])


def test_pickled_weights_are_taken_only_without_a_safer_format() -> None:
    heads = StoredFile("medusa_heads.pt", 1, "0" * 64)
    config, safe = StoredFile("config.json", 1, ""), StoredFile("model.safetensors", 1, "0" * 64)
    assert wanted([heads, config]) == [config, heads]
    assert wanted([heads, safe, config]) == [config, safe]


def test_the_command_reads_the_token_from_a_file(
    folder: Any,
    hub: StandInHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("store.fetch.Hub", partial(Hub, endpoint=hub.url))
    hub.gated = True
    (tmp_path / "token").write_text(TOKEN + "\n")
    command = ["fetch", "--model", "org/model", "--to", folder().address, "--scratch", str(tmp_path / "s")]
    command += ["--region", REGION]
    assert main(command) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main([*command, "--token-file", str(tmp_path / "token")]) == 0
    assert capsys.readouterr().out == f"org/model: complete at {COMMIT}\n"
    assert main([*command, "--token-file", str(tmp_path / "none")]) == 2
