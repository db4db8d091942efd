"""Checkov's findings against the exemptions, on a recorded report; checkov itself runs in `scripts/policy`."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from cdk8s_charts.manifests import PLACEHOLDERS
from experiment.naming import LAB_ONLY
from maintenance.policy import (
    EXEMPTIONS,
    VALUES,
    Exemption,
    UnreadableReport,
    filled,
    judge,
    main,
    read_report,
    scan,
)
from tests.conftest import ROOT

RECORDED = (ROOT / "tests" / "data" / "checkov" / "findings.json").read_text(encoding="utf-8")
FINDINGS = read_report(RECORDED).failures
SERVER_ROOT = Exemption(check="CKV_K8S_22", objects=("Deployment/qwen-*",), reason="its caches")
SERVER_USER = Exemption(check="CKV_K8S_23", objects=("Deployment/qwen-*",), reason="its devices")
COMPILE_ROOT = Exemption(check="CKV_K8S_22", objects=("Job/compile-*",), reason="its caches")
IMAGE_TAG = Exemption(check="CKV_K8S_14", objects=("CronJob/qwen-llmperf",), reason="a placeholder")
ALL = (SERVER_ROOT, SERVER_USER, COMPILE_ROOT, IMAGE_TAG)


def test_a_report_is_read_with_file_object_check_and_attribute() -> None:
    assert {(found.check, found.kind, found.name) for found in FINDINGS} == {
        ("CKV_K8S_22", "Job", "compile-qwen3-32b-08ed6b74"),
        ("CKV_K8S_22", "Deployment", "qwen-vllm"),
        ("CKV_K8S_23", "Deployment", "qwen-vllm"),
        ("CKV_K8S_14", "CronJob", "qwen-llmperf"),
    }
    tag = next(found for found in FINDINGS if found.check == "CKV_K8S_14")
    assert tag.file == "manifests/qwen3-32b/40-qwen-llmperf.yaml"
    assert tag.where == "spec/jobTemplate/spec/template/spec/containers/[0]/image"


@pytest.mark.parametrize("missing", ALL, ids=lambda entry: f"{entry.check}-{entry.objects[0]}")
def test_a_finding_without_exemption_is_one_line_with_check_object_file_and_remedy(
    missing: Exemption,
) -> None:
    assert judge(FINDINGS, ALL) == []
    (line,) = judge(FINDINGS, [entry for entry in ALL if entry is not missing])
    assert re.match(r"manifests/qwen3-32b/[\w.-]+\.yaml: \w+/[\w-]+: CKV_K8S_\d+", line)
    assert missing.check in line
    assert "cdk8s_charts" in line
    assert "maintenance/policy.py" in line


@pytest.mark.parametrize(
    ("check", "patterns"),
    [
        ("CKV_K8S_22", ("Job/qwen-vllm",)),
        ("CKV_K8S_22", ("Deployment/vllm",)),
        ("CKV_K8S_21", ("Deployment/*",)),
        ("CKV_K8S_22", ("Job/gone-*", "Deployment/qwen-*")),
    ],
    ids=["another kind", "another name", "another check", "each pattern must be needed"],
)
def test_an_exemption_that_nothing_needs_is_one_line(check: str, patterns: tuple[str, ...]) -> None:
    (line,) = judge(FINDINGS, (*ALL, Exemption(check=check, objects=patterns, reason="none")))
    assert line == f"maintenance/policy.py: {check}: {patterns[0]}: no finding needs it; remove it"


UNREAD = RECORDED.replace('"parsing_errors": 0', '"parsing_errors": 2')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "not as expected") for text in ("", "[]", '{"results": {}, "summary": {}}')),
        (UNREAD, "read 2 files"),
    ],
)
def test_an_incomplete_report_is_never_taken_for_a_clean_one(text: str, said: str) -> None:
    with pytest.raises(UnreadableReport, match=said):
        read_report(text)


def test_every_exemption_has_one_check_of_its_own_and_a_reason() -> None:
    assert len({entry.check for entry in EXEMPTIONS}) == len(EXEMPTIONS)
    for entry in EXEMPTIONS:
        assert len(entry.reason.split()) > 10, entry.check
        assert all("/" in pattern for pattern in entry.objects)


def test_image_tags_are_exempted_for_the_servers_of_the_lab_alone() -> None:
    (exempted,) = (entry.objects for entry in EXEMPTIONS if entry.check == "CKV_K8S_14")
    for path in (ROOT / "manifests").rglob("*.yaml"):
        for item in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
            label = f"{item['kind']}/{item['metadata']['name']}"
            if any(fnmatchcase(label, pattern) for pattern in exempted):
                assert LAB_ONLY in item["metadata"]["annotations"], label


def test_every_placeholder_is_filled_before_a_scan() -> None:
    assert VALUES.keys() == PLACEHOLDERS.keys()
    for path in (ROOT / "manifests").rglob("*.yaml"):
        assert not re.search(r"image: .*\$\{", filled(path.read_text(encoding="utf-8"))), path


CHECKOV = "#!/bin/sh\ncat <<'REPORT'\n{}\nREPORT\nexit {}\n"


def _checkov(folder: Path, report: str, code: int) -> Path:
    program = folder / "checkov"
    program.write_text(CHECKOV.format(report, code), encoding="utf-8")
    program.chmod(0o755)
    return program


def _manifests(folder: Path, objects: int) -> Path:
    (folder / "manifests").mkdir()
    (folder / "manifests" / "some.yaml").write_text("---\nkind: Job\n" * objects, encoding="utf-8")
    return folder / "manifests"


def test_a_scan_gives_the_report_whether_or_not_checkov_fails_something(tmp_path: Path) -> None:
    manifests = _manifests(tmp_path, 2)
    assert scan(_checkov(tmp_path, RECORDED, 1), manifests).failures == FINDINGS


@pytest.mark.parametrize(("more", "code", "said"), [(1, 0, "looked at"), (0, 2, "ended with 2")])
def test_a_scan_that_saw_too_few_objects_or_was_interrupted_is_refused(
    more: int, code: int, said: str, tmp_path: Path
) -> None:
    manifests = _manifests(tmp_path, json.loads(RECORDED)["summary"]["resource_count"] + more)
    with pytest.raises(UnreadableReport, match=said):
        scan(_checkov(tmp_path, RECORDED, code), manifests)


def test_the_command_prints_each_line_and_exits_with_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = read_report(RECORDED)
    monkeypatch.setattr("maintenance.policy.scan", lambda checkov, manifests: report)
    monkeypatch.setattr("maintenance.policy.EXEMPTIONS", ALL)
    assert main([]) == 0
    monkeypatch.setattr("maintenance.policy.EXEMPTIONS", ALL[1:])
    assert main([]) == 1
    assert "CKV_K8S_22" in capsys.readouterr().out
