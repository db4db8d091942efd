"""Weights from a hub into S3, with every kind of interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store import MARKER
from store.__main__ import main
from store.bucket import BucketFolder, Incomplete, StoredFile, StoreError, Unreachable
from store.fetch import Hub, fetch, wanted
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


def test_a_broken_line_is_taken_up_again(folder: Any, run: Any, hub: StandInHub) -> None:
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


def test_pickled_weights_are_taken_only_where_nothing_safer_is() -> None:
    heads = StoredFile("medusa_heads.pt", 1, "0" * 64)
    config, safe = StoredFile("config.json", 1, ""), StoredFile("model.safetensors", 1, "0" * 64)
    assert wanted([heads, config]) == [config, heads]
    assert wanted([heads, safe, config]) == [config, safe]


def test_the_command_reads_the_token_from_a_file(
    folder: Any, hub: StandInHub, moto_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.gated = True
    (tmp_path / "token").write_text(TOKEN + "\n")
    command = ["fetch", "--model", "org/model", "--to", folder().address, "--scratch", str(tmp_path / "s")]
    command += ["--hub", hub.url, "--endpoint-url", moto_url, "--region", REGION]
    assert main(command) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main([*command, "--token-file", str(tmp_path / "token")]) == 0
    assert capsys.readouterr().out == f"org/model: complete at {COMMIT}\n"
    assert main([*command, "--token-file", str(tmp_path / "none")]) == 2
