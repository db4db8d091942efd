"""The verb as it is called: files, refusals, and what it does to a running cluster."""

from __future__ import annotations

import json
import re
import resource
import shutil
from pathlib import Path

import click
import pytest
import yaml

from cdk8s_charts.manifests import read
from core.findings import Misuse
from experiment import Experiment, load
from experiment.model import Serve
from operations import promotion as verb
from operations.editing import Remarked, edited
from operations.promotion import bill, billed
from tests.conftest import NODE_USD, REFERENCE, ROOT
from tests.operations.conftest import Say
from tests.operations.world import World

pytestmark = pytest.mark.usefixtures("direct")
TEXT = REFERENCE.read_text(encoding="utf-8")
SECTION = {"arm": "qwen-sd-vllm", "replicas": 2}
ARN = "arn:aws:acm:us-east-2:123456789012:certificate/0a1b"


MIDDLE = """\
name: x  # why x
serve:  # since March
  # the cheaper one
  arm: a   # was b
  client_cidrs:
    - 10.0.0.0/16

# of the cluster
cluster: {region: r}
"""
WRITTEN = "  arm: a   # was b\n  client_cidrs:\n    - 10.0.0.0/16\n"
BLOCKS = (
    "name: x\nserve: {arm: a}",
    "serve: {arm: a,\n  replicas: 3}\nname: x\n",
    "name: x\nserve:\n\nz: 1\n",
)
SPOILT = ("name: x\n...\n", "{name: x, serve: {arm: a}}\n", "serve: &s {arm: a}\nb: *s\n")


def test_the_section_is_edited_in_place_or_stands_at_the_end_and_nothing_else_changes() -> None:
    whole = edited(TEXT, "serve", SECTION)
    assert whole == TEXT.rstrip("\n") + "\n\nserve:\n  arm: qwen-sd-vllm\n  replicas: 2\n"
    assert edited(whole, "serve", {"replicas": 2}) == whole
    assert WRITTEN in MIDDLE
    after = "  arm: b   # was b\n  client_cidrs: [10.1.0.0/16]\n  replicas: 1\n"
    changed = {"arm": "b", "client_cidrs": ["10.1.0.0/16"], "replicas": 1}
    assert edited(MIDDLE, "serve", changed) == MIDDLE.replace(WRITTEN, after)
    for before in BLOCKS:
        read = yaml.safe_load(edited(before, "serve", SECTION))
        assert (read["serve"], read["name"]) == (SECTION, "x")
    for value in ("on", "1", "null", ARN, "a: b", "10.20.0.0/16"):  # a text stays a text
        section = {"arm": value, "client_cidrs": [value]}
        assert yaml.safe_load(edited(TEXT, "serve", section))["serve"] == section
    for before in SPOILT:
        with pytest.raises(Misuse, match=r"^serve: .* or by hand$"):
            edited(before, "serve", SECTION)


@pytest.mark.parametrize(
    "section", ["serve: {routes: {json: a}}", '"serve":\n  routes: {json: a}', "serve:\n"]
)
def test_remarks_stand_behind_their_lines_however_the_section_was_written(section: str) -> None:
    routes = {
        "json": Remarked("b", "1.6 times"),
        "*": Remarked("a", "the rest"),
        "on": Remarked("b", "2 times"),
    }
    after = edited(f"name: x\n{section}\n", "serve", {"routes": routes})
    assert [line.split("#")[0].split() for line in after.splitlines() if "#" in line] == [
        ["json:", "b"],
        ['"*":', "a"],
        ['"on":', "b"],
    ]
    assert after.count("serve") == 1


def test_nodes_bill_whole(experiment: Experiment) -> None:
    one = f"1 Trn2 node, ${NODE_USD:.2f} an hour"
    more = f"{one}; with all replicas 2 Trn2 nodes, ${2 * NODE_USD:.2f} an hour"
    for replicas, most, line in ((1, 1, one), (2, 2, one), (1, 2, one), (1, 3, more)):
        serve = Serve(arm="qwen-sd-vllm", replicas=replicas, max_replicas=most)
        assert billed(bill(experiment, serve)) == line


BALANCED = ("--certificate", ARN, "--client-cidr", "10.20.0.0/16")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The reference experiment, to be edited, with its manifests beside it."""
    shutil.copytree(ROOT / "manifests" / "qwen3-32b", tmp_path / "manifests" / "qwen3-32b")
    return Path(shutil.copy(REFERENCE, tmp_path / "mine.yaml"))


@pytest.fixture
def promote(file: Path, say: Say) -> Say:
    """Exit code, stdout and stderr."""
    manifests = str(file.parent / "manifests")
    return lambda *arguments: say("promote", str(file), *arguments, "--manifests", manifests)


@pytest.fixture
def world(world: World) -> World:
    """Whose arms stand as a run with --keep-nodes leaves them."""
    deployment(world, "qwen-vllm")["spec"]["replicas"] = 1
    return world


def deployment(world: World, name: str) -> dict[str, dict[str, int]]:
    return world.api.objects[("deployments", "qwen3-32b", name)]


def replicas(world: World) -> dict[str, int]:
    return {name: deployment(world, name)["spec"]["replicas"] for name in ("qwen-vllm", "qwen-sd-vllm")}


def test_the_file_and_the_manifests_change_together_and_the_next_steps_are_said(
    file: Path, promote: Say
) -> None:
    code, out, err = promote("qwen-sd-vllm")
    assert (code, err) == (0, "")
    promoted = load(file)
    assert promoted.serve is not None
    assert (promoted.serve.arm, promoted.serve.replicas, promoted.serve.scales) == ("qwen-sd-vllm", 1, False)
    written = read(promoted, file.parent / "manifests")  # refuses what does not belong together
    assert "60-service.yaml" in {one.name for one in written}
    for words in (
        "qwen-vllm at 0",
        "+serve:",
        f"${NODE_USD:.2f} an hour",
        "every day at 22:00 UTC",
        "answers end at 600 tokens, whatever a caller asks for",
        "prompts must not exceed 417 tokens",  # 1024 - 600 - 7
        "./trnspec deploy",
        f"./trnspec scale {file} 1 --hours",
    ):
        assert words in out
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    again = promote("qwen-sd-vllm")
    assert (again[0], "the manifests are up to date" in again[1]) == (0, True)


def test_where_the_manifests_cannot_be_written_the_file_is_unchanged_too(file: Path, promote: Say) -> None:
    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in file.parent.rglob("*") if path.is_file()}

    before, (_, most) = kept(), resource.getrlimit(resource.RLIMIT_FSIZE)
    assert promote("qwen-sd-vllm", "--dry-run")[0] == 0  # which also starts jsii, without a limit
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (12_000, most)
    )  # the experiment is smaller, most manifests are larger
    try:
        code, out, err = promote("qwen-sd-vllm")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert (code, out, err.count("\n")) == (3, "", 1), err
    assert "File too large; make room" in err
    assert kept() == before


def test_a_load_balancer_and_scaling_in_one_go_and_a_dry_run_changes_nothing(
    file: Path, promote: Say
) -> None:
    before = file.read_text().replace("  allocation: dra ", "  api_key_secret: k\n  allocation: dra ", 1)
    file.write_text(before)
    code, out, _ = promote("qwen-sd-vllm", "--max-replicas", "2", *BALANCED, "--dry-run", "--json")
    told = json.loads(out)
    assert code == 0
    expected = {"60-service.yaml", "62-load-balancer.yaml", "65-autoscaling.yaml", "05-network.yaml"}
    assert {Path(path).name for path in told["files"]} >= expected
    assert (told["load_balancer"], told["max_replicas"], told["at_zero"]) == (True, 2, ["qwen-vllm"])
    assert file.read_text() == before
    assert not (file.parent / "manifests" / "qwen3-32b" / "60-service.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "reasons"),
    [
        (
            "qwen-sd-vlm",
            [
                "'qwen-sd-vlm': is not an arm of this experiment that serves requests; did you mean qwen-sd-vllm?"
            ],
        ),
        ("qwen-sd-vllm --replicas 3", ["serve.replicas = 3: 1 x trn2.48xlarge hold 2 arms"]),
        (f"qwen-sd-vllm {' '.join(BALANCED)}", ["serving.api_key_secret: is missing"]),
        (
            "qwen-sd-vllm --replicas 3 --client-cidr 10.20.0.0/16",
            ["they need a load balancer", "serve.replicas = 3"],
        ),
    ],
)
def test_what_cannot_be_promoted_is_a_line_for_each_reason_and_changes_nothing(
    file: Path, promote: Say, arguments: str, reasons: list[str]
) -> None:
    before = file.read_text()
    code, out, err = promote(*arguments.split())
    lines = err.splitlines()
    assert (code, out, len(lines)) == (2, "", len(reasons))
    assert all(line.startswith("trnspec promote: ") and ".tmp" not in line for line in lines)
    assert all(any(reason in line for line in lines) for reason in reasons)
    assert file.read_text() == before
    assert [path for path in file.parent.iterdir() if path.name.startswith(".")] == []


def test_a_batch_job_is_not_promoted(say: Say) -> None:
    path = next(path for path in (ROOT / "experiments").glob("*.yaml") if load(path).batch_arms)
    name = load(path).batch_arms[0].name
    code, _, err = say("promote", str(path), name, "--dry-run")
    assert (code, err.count("\n")) == (2, 1)
    assert "is not an arm of this experiment that serves requests" in err


def test_now_lowers_the_losers_first_then_raises_a_compiled_winner(
    file: Path, world: World, promote: Say
) -> None:
    before = file.read_text()
    code, _, err = promote("qwen-sd-vllm", "--now")
    assert (code, "has no compiled artifact" in err, err.count("\n")) == (1, True, 1)
    world.compiled("qwen-sd-vllm")
    assert promote("qwen-sd-vllm", "--now", "--dry-run")[0] == 0
    assert (replicas(world), file.read_text()) == ({"qwen-vllm": 1, "qwen-sd-vllm": 0}, before)
    world.api.refusal = (403, "Forbidden", 'deployments.apps "qwen-vllm" is forbidden')
    code, _, err = promote("qwen-sd-vllm", "--now")
    assert (code, err.count("\n"), load(file).serve is not None) == (3, 1, True)
    world.api.refusal = None
    code, out, err = promote("qwen-sd-vllm", "--now", "--json")
    assert (code, "qwen-vllm from 1 to 0 replicas" in err) == (0, True)
    assert replicas(world) == {"qwen-vllm": 0, "qwen-sd-vllm": 1}
    changes = [request for request in world.api.requests if request.startswith("PATCH")]
    assert [change.rsplit("/", 1)[1] for change in changes] == ["qwen-vllm", "qwen-sd-vllm"]
    told = json.loads(out)
    assert any(" 1 --hours" in command for command in told["next"])  # nodes are never started by the way
    assert (told["trn2_nodes_now"], world.nodes) == (0, 0)


def test_where_gitops_applies_the_next_steps_go_through_its_repository(
    file: Path, promote: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "deployment.yaml").write_text("workloads: gitops\n", encoding="utf-8")
    monkeypatch.setattr(verb, "ROOT", file.parent)
    code, out, _ = promote("qwen-sd-vllm", "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["next"][1:4] == [
        f"./trnspec deploy {file}",
        f"./trnspec render {file} --resolved --out <DIR>",
        f"./trnspec promote {file} qwen-sd-vllm --now",
    ]


def test_the_guide_names_every_option_and_its_example_is_a_valid_experiment(file: Path) -> None:
    guide = (ROOT / "docs" / "promote.md").read_text(encoding="utf-8")
    own = {one.opts[-1] for one in verb.command.params if isinstance(one, click.Option)}
    shared = {"--account", "--manifests"}
    assert {option for option in own - shared if f"`{option}" not in guide} == set()
    (example,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    written = yaml.safe_load(example)
    text = yaml.safe_load(file.read_text())
    text["serving"] |= written["serving"]
    file.write_text(yaml.safe_dump({**text, "serve": written["serve"]}))
    assert load(file).serve is not None
