"""`./trnspec review` in a repository of its own: BASE read from git, each state by its own code."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import texts, write
from cdk8s_charts.render import render
from tests.conftest import ROOT
from tests.operations.conftest import Say
from trnspec.experiment import Experiment, load
from trnspec.operations.review import reviewing, snapshot
from trnspec.operations.review.rights import template_grants
from trnspec.operations.review.snapshot import described, without_hashes

pytestmark = pytest.mark.slow

ROOMS = ["cdk8s_charts", "images", "infra", "src"]
SETTINGS = "cdk.json", "deployment.yaml"
FILE = "experiments/qwen3-32b.yaml"
K = ("num_speculative_tokens: 7", "num_speculative_tokens: 5")
TYPO = ("instance: trn2.48xlarge", "instance: trn2.48xlarg")
Base = Callable[[Callable[[], object]], str]
Edited = Callable[[str, str, str], Path]


def git(tree: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(tree), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def rendered(tree: Path) -> None:
    experiment = load(tree / FILE)
    write(texts(experiment, render(experiment), tree / "manifests"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code and the reference experiment, freshly rendered, committed once."""
    tree = tmp_path_factory.mktemp("repository").resolve()
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "experiments").mkdir()
    for file in (*SETTINGS, FILE):
        shutil.copy(ROOT / file, tree / file)
    whole = (tree / FILE).read_text(encoding="utf-8")  # what it expects holds for its own k alone
    (tree / FILE).write_text(
        re.sub(r"^expect:.*\n(?:[ #].*\n|\n)*", "", whole, flags=re.MULTILINE), encoding="utf-8"
    )
    rendered(tree)
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "base")
    return tree


@pytest.fixture
def edited(repository: Path) -> Iterator[Edited]:
    """Puts a text in the place of another in a file of the repository; nothing is rendered, all is undone afterwards."""

    def edit(file: str, old: str, new: str) -> Path:
        text = (repository / file).read_text(encoding="utf-8")
        assert old in text
        (repository / file).write_text(text.replace(old, new), encoding="utf-8")
        return repository

    yield edit
    git(repository, "checkout", "--quiet", ".")
    git(repository, "clean", "--quiet", "--force", "-d", "manifests")


@pytest.fixture
def review(repository: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Exit code, stdout and stderr of the verb in that repository."""
    monkeypatch.setattr(reviewing, "ROOT", repository)
    return lambda *arguments: say("review", *arguments)


@pytest.mark.slow
def test_a_change_of_k_is_told_from_yaml_to_template(edited: Edited, review: Say) -> None:
    """Beside an experiment of the lab, which is never deployed."""
    rendered(edited(FILE, *K))
    code, out, err = review("HEAD")
    assert code == 1, err
    assert "| `qwen-sd-vllm` | speculation.num_speculative_tokens 7 -> 5 | **yes**" in out
    assert "| `qwen-vllm` | nothing | no | no |" in out
    assert "template qwen3-32b-workloads" in out
    assert "### Access" not in out


@pytest.fixture
def base(repository: Path) -> Iterator[Base]:
    """A BASE of its own: the state after an edit, committed; the working tree is as it was."""
    first = git(repository, "rev-parse", "HEAD")

    def commit(edit: Callable[[], object]) -> str:
        edit()
        git(repository, "add", "--all")
        git(repository, "commit", "--quiet", "--message", "another")
        named = git(repository, "rev-parse", "HEAD")
        git(repository, "reset", "--quiet", "--hard", first)
        return named

    yield commit
    git(repository, "reset", "--quiet", "--hard", first)


def test_a_base_whose_modules_have_other_names_is_read_by_its_own_code_and_nothing_has_changed(
    repository: Path, base: Base, review: Say
) -> None:
    def rename() -> None:
        for module in (
            "trnspec.experiment.loading",
            "trnspec.experiment.compilation",
            "cdk8s_charts.manifests",
        ):
            for path in repository.rglob("*.py"):
                text = path.read_text(encoding="utf-8")
                path.write_text(re.sub(rf"\b{re.escape(module)}\b", f"{module}_once", text), encoding="utf-8")
            file = module.replace("trnspec", "src/trnspec").replace(".", "/")
            git(repository, "mv", f"{file}.py", f"{file}_once.py")

    code, out, err = review(base(rename), "--without-templates")
    assert (code, out.splitlines()[-1]) == (0, "Nothing changes in what is deployed."), err


def test_a_base_that_cannot_describe_itself_is_named_with_exit_2_and_nothing_looks_new(
    repository: Path, base: Base, edited: Edited, review: Say
) -> None:
    snapshot_py = "src/trnspec/operations/review/snapshot.py"
    edits: dict[str, Callable[[], object]] = {
        f"has no {snapshot_py}, by which": (repository / snapshot_py).unlink,
        f"its {snapshot_py} does not report prompts; compare": lambda: edited(
            snapshot_py, '"prompts": {name', '"asked": {name'
        ),
        "its code does not run with the packages installed here (ModuleNotFoundError: No module named 'nothing_here')": (
            lambda: (repository / snapshot_py).write_text("import nothing_here", encoding="utf-8")
        ),
        "experiments/qwen3-32b.yaml:": lambda: edited(FILE, *TYPO),
    }
    named = err = ""
    for why, edit in edits.items():
        named = base(edit)
        ended, out, err = review(named, "--without-templates", "--json")
        assert (ended, "problems" in out) == (2, True)
        assert err.splitlines()[1].startswith(f"trnspec review: {named}: {why}")
    assert f"{named} could not be read in full: fix what is named above, or name another BASE" in err


STALE = r"rendered from another state of .*; run ./trnspec render .*"


@pytest.mark.parametrize(
    ("file", "edit", "problem"),
    [
        (FILE, K, f"manifests/qwen3-32b: {STALE}"),
        (FILE, TYPO, r"experiments/qwen3-32b\.yaml:\d+: .*'trn2\.48xlarg'.*"),
    ],
    ids=["not rendered again", "mistyped instance"],
)
def test_a_side_that_cannot_be_read_stops_the_review(
    edited: Edited, review: Say, file: str, edit: tuple[str, str], problem: str
) -> None:
    """Without templates of one side, all its buckets, networks and keys looked gone."""
    edited(file, *edit)
    code, out, err = review("HEAD", "--without-templates")
    assert (code, out) == (2, ""), err
    _, told, last = err.splitlines()
    assert re.fullmatch(f"trnspec review: this tree: {problem}", told)
    assert last.startswith(
        "trnspec review: nothing was compared, because this tree could not be read in full: fix"
    )


def test_an_experiment_that_git_does_not_track_is_named_and_the_rest_is_compared(
    repository: Path, edited: Edited, review: Say
) -> None:
    """It is not rendered either; tracked, it would stop the review."""
    git(repository, "config", "core.sparseCheckout", "true")  # BASE is read whole all the same
    mine = repository / "experiments/mine.yaml"
    mine.write_text((ROOT / FILE).read_text(encoding="utf-8").replace("\nname: qwen3-32b", "\nname: mine"))
    rendered(edited(FILE, *K))
    try:
        code, out, err = review("HEAD", "--without-templates")
        git(repository, "add", "--intent-to-add", str(mine))
        tracked = review("HEAD", "--without-templates")
    finally:
        git(repository, "reset", "--quiet", str(mine))
        mine.unlink()
    assert (
        code,
        "| `qwen-sd-vllm` | speculation.num_speculative_tokens 7 -> 5 | **yes**" in out,
        "mine" in out,
    ) == (1, True, False), err
    assert (
        "trnspec review: experiments/mine.yaml: not compared, because git does not track it; git add" in err
    )
    assert (tracked[0], "experiment mine is not rendered there" in tracked[2]) == (2, True), tracked[2]


def test_a_base_that_git_does_not_know_is_refused_in_one_line(review: Say) -> None:
    code, out, err = review("no-such-branch")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("trnspec review: no-such-branch: not a commit of this repository; fetch it")


def test_the_snapshot_finds_what_makes_arms_unequal(reference: Experiment) -> None:
    objects = {file.name: [dict(item) for item in file.objects] for file in render(reference)}
    assert described(reference, objects)["undeclared"] == {"qwen-sd-vllm": []}
    (deployment,) = [item for item in objects["30-qwen-sd-vllm.yaml"] if item["kind"] == "Deployment"]
    deployment["spec"]["minReadySeconds"] = 30
    assert described(reference, objects)["undeclared"] == {"qwen-sd-vllm": ["spec.minReadySeconds"]}


def test_the_archive_of_the_sources_is_no_change_of_the_pipeline() -> None:
    def reading(digest: str) -> dict[str, object]:
        return {"Action": "s3:GetObject", "Resource": f"arn:aws:s3:::assets/{digest}.zip", "Key": digest[:40]}

    assert without_hashes(reading("0a" * 32))["Resource"] == without_hashes(reading("1b" * 32))["Resource"]
    assert without_hashes(reading("0a" * 32))["Key"] == "0a" * 20, "what is shorter is a name"


@pytest.mark.slow
def test_the_pipeline_its_stages_and_the_bootstrap_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    state: dict[str, Any] = {"delivery": {}, "problems": []}
    monkeypatch.chdir(ROOT)
    snapshot._add_delivery(state)
    assert state["problems"] == []
    parts = "cluster", "delivery", "delivery-role", "observability"
    stages = {f"pipeline/{stage}/{part}" for stage in ("dev", "prod") for part in parts}
    assert state["delivery"].keys() == {"infra/bootstrap/policies.yaml", "pipeline", *stages}
    (told,) = state["delivery"]["pipeline/prod/observability"]["Resources"].values()
    assert told["Properties"]["Endpoint"] == "team@example.com"
    (admin,) = (one for one in template_grants(state["delivery"]) if "444455556666:role/platform" in one)
    assert admin.startswith("pipeline/prod/cluster: EKS::AccessEntry")
