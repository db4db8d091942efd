"""`scripts/policy`: checkov's findings against the exemptions, with a program in checkov's place that gives a recorded report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from cdk8s_charts.manifests import PLACEHOLDERS
from experiment.naming import LAB_ONLY
from maintenance import policy
from maintenance.policy import EXEMPTIONS, VALUES, Exemption
from tests.conftest import ROOT

RECORDED = (ROOT / "tests" / "data" / "checkov" / "findings.json").read_text(encoding="utf-8")
LOOKED_AT = json.loads(RECORDED)["summary"]["resource_count"]
FINDINGS = (
    # the check, a pattern that exempts it, the line that is printed otherwise
    ("CKV_K8S_22", "Deployment/qwen-*", "30-qwen-vllm.yaml: Deployment/qwen-vllm: CKV_K8S_22 at spec/"),
    ("CKV_K8S_23", "Deployment/qwen-*", "30-qwen-vllm.yaml: Deployment/qwen-vllm: CKV_K8S_23: Minimize"),
    ("CKV_K8S_22", "Job/compile-*", "30-qwen-vllm.yaml: Job/compile-qwen3-32b-08ed6b74: CKV_K8S_22 at spec/"),
    (
        "CKV_K8S_14",
        "CronJob/*",
        "40-qwen-llmperf.yaml: CronJob/qwen-llmperf: CKV_K8S_14 at spec/jobTemplate/",
    ),
)
NEEDED = tuple(Exemption(check=check, objects=(pattern,), reason="") for check, pattern, _ in FINDINGS)
CHECKOV = """\
#!/bin/sh
! grep -r '\\$' manifests || exit 2
cat <<'REPORT'
{}
REPORT
exit {}
"""


class Scripts:
    """A checkout with manifests and a checkov."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.patch, self.capsys = root, patch, capsys
        patch.setattr(policy, "ROOT", root)

    def policy(
        self,
        exemptions: Sequence[Exemption] = NEEDED,
        report: str = RECORDED,
        code: int = 1,
        objects: int = 2,
    ) -> tuple[int, str, str]:
        """Exit code, result and the last message."""
        self.patch.setattr(policy, "EXEMPTIONS", exemptions)
        program = self.root / ".policy" / "bin" / "checkov"
        for folder in (program.parent, self.root / "manifests" / "one"):
            folder.mkdir(parents=True)
        program.write_text(CHECKOV.format(report, code), encoding="utf-8")
        program.chmod(0o755)
        item = "---\nkind: Job\nimage: ${BENCHMARK_IMAGE}\n"
        (self.root / "manifests" / "one" / "10-some.yaml").write_text(item * objects, encoding="utf-8")
        found, told = policy.main([]), self.capsys.readouterr()
        return found, told.out, told.err.splitlines()[-1]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Scripts:
    return Scripts(tmp_path, monkeypatch, capsys)


def test_when_every_finding_is_exempted_one_line_says_what_was_looked_at(scripts: Scripts) -> None:
    said = f"{LOOKED_AT} objects; 4 findings, each exempted by one of 4 reasons\n"
    assert scripts.policy()[:2] == (0, said)


@pytest.mark.parametrize("number", range(len(FINDINGS)))
def test_a_finding_without_exemption_is_one_line_with_file_object_check_place_and_remedy(
    number: int, scripts: Scripts
) -> None:
    code, told, _ = scripts.policy((*NEEDED[:number], *NEEDED[number + 1 :]))
    assert code == 1
    (line,) = told.splitlines()
    assert line.startswith(f"manifests/qwen3-32b/{FINDINGS[number][2]}")
    assert "fix it in cdk8s_charts" in line
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
def test_an_exemption_that_nothing_needs_is_one_line(
    check: str, patterns: tuple[str, ...], scripts: Scripts
) -> None:
    code, told, _ = scripts.policy((*NEEDED, Exemption(check=check, objects=patterns, reason="none")))
    line = f"maintenance/policy.py: {check}: {patterns[0]}: no finding needs it; remove it\n"
    assert (code, told) == (1, line)


@pytest.mark.parametrize(
    ("report", "code", "objects", "said"),
    [
        *((text, 1, 2, "not as expected") for text in ("", "[]", '{"results": {}, "summary": {}}')),
        (RECORDED.replace('"parsing_errors": 0', '"parsing_errors": 2'), 1, 2, "could not read 2 files"),
        (RECORDED, 0, LOOKED_AT + 1, f"looked at {LOOKED_AT} objects of {LOOKED_AT + 1}"),
        (RECORDED, 2, 2, "ended with 2"),
        (RECORDED, 0, 0, "holds no objects"),
    ],
)
def test_an_incomplete_report_is_never_taken_for_a_clean_one(
    report: str, code: int, objects: int, said: str, scripts: Scripts
) -> None:
    found, told, message = scripts.policy(report=report, code=code, objects=objects)
    assert (found, told) == (2, "")
    assert said in message


def test_every_exemption_has_one_check_of_its_own_and_a_reason_and_every_placeholder_a_value() -> None:
    assert len({entry.check for entry in EXEMPTIONS}) == len(EXEMPTIONS)
    for entry in EXEMPTIONS:
        assert len(entry.reason.split()) > 10, entry.check
        assert all(re.fullmatch(r"\w+/\S+", pattern) for pattern in entry.objects)
    assert VALUES.keys() == PLACEHOLDERS.keys()


def test_image_tags_are_exempted_for_the_servers_of_the_lab_alone() -> None:
    (exempted,) = (entry.objects for entry in EXEMPTIONS if entry.check == "CKV_K8S_14")
    for path in (ROOT / "manifests").rglob("*.yaml"):
        for item in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
            label = f"{item['kind']}/{item['metadata']['name']}"
            if any(fnmatchcase(label, pattern) for pattern in exempted):
                assert LAB_ONLY in item["metadata"]["annotations"], label
