"""The verb as it is called: what it prints is what the file takes, and what cannot serve is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import NODE_USD, REFERENCE
from tests.operations.conftest import Say
from trnspec.experiment import load
from trnspec.experiment.model import Serve

pytestmark = pytest.mark.usefixtures("direct")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(REFERENCE, tmp_path / "mine.yaml"))


def test_the_printed_section_makes_the_arm_a_service_and_the_next_commands_follow(
    file: Path, say: Say
) -> None:
    before = file.read_text()
    code, out, err = say("promote", str(file), "qwen-sd-vllm", "--replicas", "2")
    assert (code, err, file.read_text()) == (0, "", before)
    section, rest = out.split("\n\n")
    assert f"1 Trn2 node, ${NODE_USD:.2f} an hour" in rest, "two arms fit a node, which bills whole"
    assert [line.strip() for line in rest.splitlines() if line.startswith("    ")] == [
        f"./trnspec render {file}",
        f"./trnspec deploy {file}",
    ]
    file.write_text(f"{before}\n{section}\n")
    assert load(file).serve == Serve(arm="qwen-sd-vllm", replicas=2)
    code, out, _ = say("promote", str(file), "qwen-vllm", "--json")
    told = json.loads(out)
    assert (code, told["serve"], told["nodes"]) == (0, {"arm": "qwen-vllm", "replicas": 1}, 1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("qwen-sd-vlm", "qwen-sd-vlm: is not an arm of this experiment that serves requests; did you mean"),
        ("qwen-sd-vllm --replicas 3", "--replicas 3: 1 x trn2.48xlarge holds 2 arms; use 2 or less"),
    ],
)
def test_what_cannot_serve_is_refused_in_one_line(say: Say, arguments: str, reason: str) -> None:
    code, out, err = say("promote", str(REFERENCE), *arguments.split())
    assert (code, out, err.count("\n"), reason in err) == (2, "", 1, True)
