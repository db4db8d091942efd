"""What a damaged state of a run says, and the names of files that somebody else chose."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from core.findings import Outside, Refusal
from experiment import Experiment
from experiment.naming import ACTIVE_RUN
from operations.cloud.aws import Aws
from operations.running import launch as run_verb
from operations.running.measuring import bring
from operations.running.state import parse
from store.__main__ import restore
from store.artifact import pull
from store.bucket import Incomplete, from_json, inside
from tests.hostile.test_operations import clean, fresh
from tests.operations.conftest import Say
from tests.operations.world import World
from tests.store.conftest import folder, s3

__all__ = ["folder", "s3"]

STATE: dict[str, Any] = {
    "schema": 1,
    "id": "20260401t120000z",
    "begun": "2026-04-01T12:00:00Z",
    "digest": "0a",
    "owner": "",
    "renewed": "2026-04-01T12:00:00Z",
}
DAMAGED: dict[str, Any] = {
    "an id that leads out of the folder": {"id": "../../elsewhere"},
    "an id with a line's end": {"id": "20260401t120000z\n"},
    "an owner that is a list": {"owner": ["vm:1"]},
    "an owner with an escape sequence": {"owner": "\x1b[2Jvm:1"},
    "no owner": {"owner": None},
    "a time that is not one": {"renewed": "yesterday"},
    "a time without a zone": {"renewed": "2026-04-01T12:00:00"},
    "steps that are no list": {"done": "weights"},
    "steps within steps": {"done": [["weights"]]},
    "fewer than no nodes": {"nodes": -1},
    "hours that are no number": {"node_hours": float("nan")},
    "results elsewhere": {"results": {"1": "runs/../state/"}},
    "results of everybody": {"results": {"1": "runs/"}},
    "folders of before as a text": {"before": {"1": "runs/a/"}},
    "a key that nobody knows": {"next": 1},
    "another release": {"schema": 2},
}
TEXTS = {
    "no JSON": b"owner: me",
    "a list": b"[]",
    "half of it": json.dumps(STATE).encode()[:40],
    "not text": b"\xff\xfe",
    "very deep": b'{"done": ' + b"[" * 200_000,
    "null": b"null",
    **{case: json.dumps(STATE | change).encode() for case, change in DAMAGED.items()},
}
NAMES = ("../x", "a/../../x", "/etc/x", "a//x", "./x", "a/./x", "", "a\x00b", "a\nb", "\x1b[2J", "..")


@pytest.mark.parametrize("case", TEXTS)
def test_a_damaged_state_is_one_line(case: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(TEXTS[case], "s3://results/state/active.json")
    assert clean(str(caught.value))
    assert "s3://results/state/active.json: cannot be read by this release" in str(caught.value)


def test_every_reader_of_a_damaged_state_ends_in_one_line(world: World, say: Say) -> None:
    world.client("s3").put_object(
        Bucket="qwen3-32b-results-123456789012-us-east-2", Key=ACTIVE_RUN, Body=TEXTS["very deep"]
    )
    run = "run", "experiments/qwen3-32b.yaml"
    promote = "promote", "qwen-sd-vllm", "--now", "--dry-run"
    for words in (run, (*run, "--dry-run"), ("status",), promote):
        code, _, err = say(*words)
        assert code in (1, 3), words
        assert "cannot be read by this release" in err
        assert all(map(clean, err.splitlines()))


def test_no_name_leads_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.symlink("/etc", tmp_path / "folder" / "link")
    for name in (*NAMES, "folder/link/passwd"):
        with pytest.raises(Incomplete) as caught:
            inside(tmp_path, name, "s3://b/x")
        assert clean(str(caught.value)), name
    for name in NAMES:
        with pytest.raises(Incomplete):
            from_json(json.dumps([{"path": name, "size": 1, "sha256": "0"}]), "s3://b/x")
    assert inside(tmp_path, "a/b", "x") == tmp_path / "a" / "b"


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/escaped", "a//escaped"])
def test_what_a_bucket_names_stays_in_the_folder(
    name: str,
    folder: Any,
    s3: Any,
    tmp_path: Path,  # a fixture
) -> None:
    kept, target = folder(), tmp_path / "a" / "target"
    prefix = kept.address.removeprefix("s3://store/")
    listed = {"files": [{"path": name, "size": 2, "sha256": "0"}]}
    s3.put_object(Bucket="store", Key=f"{prefix}/{name}", Body=b"{}")
    with pytest.raises(Incomplete, match="is not the name of a file"):
        restore(kept, target, lambda _: None)
    s3.put_object(Bucket="store", Key=f"{prefix}/COMPLETE", Body=json.dumps(listed).encode())
    with pytest.raises(Incomplete, match="is not the name of a file"):
        pull(kept, target, key=None, report=lambda _: None)
    assert not list(tmp_path.rglob("escaped"))


def test_results_come_home_into_their_folder_only(experiment: Experiment, aws: Aws, tmp_path: Path) -> None:
    driver = fresh(experiment, aws, tmp_path / "a" / "b")
    names = "../escaped", "/escaped", "a/../../escaped", ".git/hooks/escaped", "a/.escaped", "a\x1bb"
    for number, name in enumerate(names):
        driver.world.store("results", f"runs/{number}/{name}", {})
        driver.world.store("results", f"runs/{number}/folder/", {})
        with pytest.raises(Refusal, match="is not the name of a file"):
            bring(driver.context(), f"runs/{number}/", driver.out)
    assert not list(tmp_path.rglob("*escaped"))


ANSWERED = "import benchmark.__main__; benchmark.__main__.main = lambda _: {code}; "


@pytest.mark.parametrize(
    "broken", [ANSWERED.format(code=2), "import sys; sys.exit(1)\n", "import os; os.kill(os.getpid(), 9)\n"]
)
def test_a_report_that_crashes_is_neither_an_answer_nor_a_finding(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_verb._REPORT
    monkeypatch.setattr(run_verb, "_REPORT", ANSWERED.format(code=1) + whole)
    run_verb._report(tmp_path)  # a report with a finding is a report
    monkeypatch.setattr(run_verb, "_REPORT", broken + whole)
    with pytest.raises(Outside, match="ended with exit"):
        run_verb._report(tmp_path)
