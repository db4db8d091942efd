"""A program in the place of kubectl that answers what no cluster answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.findings import Outside, Refusal
from operations.cloud import kubernetes
from operations.cloud.kubernetes import Kubernetes
from tests.hostile.test_operations import clean

ANSWERS = {
    "nothing": "",
    "a page": "<html>Sign in</html>",
    "half of an object": '{"metadata": {"na',
    "a list": "[]",
    "null": "null",
    "an object without a name": '{"metadata": {}}',
    "a name that is a number": '{"metadata": {"name": 1}}',
    "a status that is a list": '{"metadata": {"name": "x"}, "status": []}',
    "labels that are a text": '{"metadata": {"name": "x", "labels": "a"}}',
    "items that are no list": '{"items": {}}',
    "items without metadata": '{"items": [{}]}',
    "very deep": "[" * 100_000,
}


def pretending(folder: Path, text: str) -> Kubernetes:
    """kubectl that prints `text`."""
    (folder / "answer").write_text(text)
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {folder / 'answer'}\n")
    program.chmod(0o755)
    return Kubernetes(kubectl=program, kubeconfig=folder / "config", namespace="x")


def test_what_no_cluster_answers_is_one_line_and_null_is_absent(tmp_path: Path) -> None:
    for case, answer in ANSWERS.items():
        cluster = pretending(tmp_path, answer)
        for ask, words in ((cluster.get, ("job", "x")), (cluster.list, ("jobs",))):
            with pytest.raises(Outside, match="unexpected answer, not from a Kubernetes cluster") as caught:
                ask(*words)
            assert clean(str(caught.value)), case
    found = pretending(tmp_path, '{"metadata": {"name": "x", "labels": null}, "status": {}}').get("job", "x")
    assert found is not None
    assert found["metadata"].get("labels", {}) == {}
    with pytest.raises(Outside, match="it has no spec"):
        _ = found["spec"]


def test_a_kubectl_that_hangs_or_curses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = pretending(tmp_path, "{}")
    (tmp_path / "kubectl").write_text("#!/bin/sh\nprintf '\\033[2Jerror\\377' >&2\nexit 1\n")
    with pytest.raises(Refusal) as caught:
        cluster.get("job", "x")
    assert clean(str(caught.value))
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(kubernetes, "_PROCESS_S", 0.3)
    with pytest.raises(Outside, match="does not end within"):
        cluster.get("job", "x")
