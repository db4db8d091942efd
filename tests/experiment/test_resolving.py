"""What the reference experiment resolves to, and what the facts behind it must agree on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from cdk8s_charts.vllm_command import serve_argv
from tests.conftest import NODE_PRICE, REFERENCE, ROOT
from tests.experiment.edits import NATIVE, QWEN_DFLASH, SPECULATION, Variation, both, combined, put
from trnspec.experiment import Experiment, load
from trnspec.experiment.__main__ import main
from trnspec.experiment.arms import digest
from trnspec.experiment.compilation import artifact_key


@pytest.mark.parametrize(
    "spellings",
    [
        ("{-serving.devices}", "{serving.devices: 8}"),
        tuple(f"{{serve: {{arm: qwen-vllm{more}}}}}" for more in ("", ", replicas: 1")),
    ],
    ids=["devices", "replicas"],
)
def test_a_default_may_be_left_out_or_written(variation: Variation, spellings: tuple[str, ...]) -> None:
    assert len({digest(load(variation(combined(spelling)))) for spelling in spellings}) == 1


def _check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, result and messages."""
    code = main(["check", *arguments])
    return code, *capsys.readouterr()


def test_check_prints_arms_keys_unknowns_and_dated_cost_without_jsii_and_network(
    reference: Experiment,
) -> None:
    program = (
        "import sys; from trnspec.experiment.__main__ import main; code = main(sys.argv[1:]);"
        "print([m for m in ('jsii', 'boto3', 'aiohttp', 'urllib.request', 'asyncio') if m in sys.modules]);"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "check", str(REFERENCE)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    *shown, loaded = result.stdout.splitlines()
    assert loaded == "[]"
    for arm in reference.arms:
        assert artifact_key(arm) in result.stdout
    for words in ("known only after a run", "revision of Qwen/Qwen3-32B", NODE_PRICE.as_of, "an hour"):
        assert words in result.stdout
    assert max(map(len, shown)) <= 100
    assert result.stderr == ""


def test_check_declares_what_speculation_changes_in_an_engine(
    variation: Variation, capsys: pytest.CaptureFixture[str]
) -> None:
    """DFlash's drafter refuses asynchronous scheduling; EAGLE3 keeps it."""
    path = str(variation(QWEN_DFLASH))
    lines = _check(capsys, path)[1].splitlines()
    at = lines.index("  differs     qwen-sd-vllm, besides speculation")
    assert lines[at + 1].startswith("              asynchronous scheduling is off")
    assert max(map(len, lines[at : at + 3])) <= 100
    plain, drafting = json.loads(_check(capsys, path, "--json")[1])["arms"]
    assert plain["also_changes"] == []
    assert len(drafting["also_changes"]) == 1
    eagle3 = str(variation(NATIVE))
    assert all(arm["also_changes"] == [] for arm in json.loads(_check(capsys, eagle3, "--json")[1])["arms"])
    assert "declared" not in _check(capsys, eagle3)[1]
    assert "declared" not in _check(capsys, str(REFERENCE))[1]
    told = json.loads(_check(capsys, str(REFERENCE), "--json")[1])
    assert told["usd_per_hour"]["arms_up"] > told["usd_per_hour"]["no_trn2_node"]
    plain, drafting = told["arms"]
    assert (plain["devices"], drafting["devices"]) == ([*range(8)], [*range(8, 16)])


def test_a_plain_arm_with_the_scheduler_of_drafting_is_an_arm_of_its_own_and_others_keep_their_fingerprint(
    variation: Variation,
) -> None:
    without = load(variation(NATIVE))
    found = load(variation(both(NATIVE, put("arms.2", {"name": "plain-sync", "scheduler": "synchronous"}))))
    plain, drafting, same = found.arms
    assert same.also_changes == ("asynchronous scheduling is off",)
    assert drafting.also_changes == ()
    assert "--no-async-scheduling" not in serve_argv(plain)
    assert set(serve_argv(same)) - set(serve_argv(plain)) == {"--no-async-scheduling"}
    assert len({artifact_key(arm) for arm in found.arms}) == 3
    assert [artifact_key(arm) for arm in without.arms] == [artifact_key(plain), artifact_key(drafting)]
    assert digest(without) == digest(replace(found, arms=(plain, drafting)))
    assert digest(replace(found, arms=(plain, drafting, replace(same, scheduler=None)))) != digest(found)


def test_check_refuses_with_exit_2_in_two_lines(
    variation: Variation, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, said = _check(capsys, str(variation(put(f"{SPECULATION}.num_speculative_tokens", 1))))
    assert (code, shown) == (2, "")
    assert len(said.splitlines()) == 2
