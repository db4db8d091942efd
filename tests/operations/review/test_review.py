"""`./trnspec review` in a repository of its own: BASE read from git, by the code of this tree."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdk8s_charts.manifests import texts, write
from cdk8s_charts.render import render
from tests.conftest import ROOT
from tests.operations.conftest import Say
from trnspec.experiment import load
from trnspec.operations.review import review as reviewing

pytestmark = pytest.mark.slow

CODE = "infra/__init__.py"
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
    """The reference experiment, freshly rendered, and a file of the code, committed once."""
    tree = tmp_path_factory.mktemp("repository").resolve()
    (tree / "infra").mkdir()
    (tree / CODE).write_text("raise SystemExit('the code of BASE runs')\n", encoding="utf-8")
    (tree / "node_modules").symlink_to(ROOT / "node_modules")
    (tree / ".gitignore").write_text("node_modules\n", encoding="utf-8")
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
def test_a_change_of_k_is_told_and_opens_nothing(edited: Edited, review: Say) -> None:
    rendered(edited(FILE, *K))
    code, out, err = review("HEAD")
    assert code == 1, err
    assert "| `qwen-sd-vllm` | **yes**, key " in out
    assert "needs a human</summary>" not in out, "no stack allows more, or loses a resource"


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


@pytest.mark.slow
def test_what_opens_on_aws_is_the_summary_of_the_cdk(base: Base, edited: Edited, review: Say) -> None:
    """A private endpoint needs a bastion, whose role may do more than nothing."""
    opened = "admin_cidrs: [52.95.110.1/32]"
    code, out, err = review(base(lambda: rendered(edited(FILE, "admin_cidrs: []", opened))))
    assert code == 1, err
    summary = out[out.index("qwen3-32b-cluster, by the CDK: needs a human") :]
    assert "IAM Statement Changes" in summary
    assert "\n[+] AWS::IAM::Role " in summary
    assert "ssm:UpdateInstanceInformation" in summary


def test_a_base_that_this_code_cannot_read_is_the_answer_with_exit_2_and_nothing_looks_new(
    base: Base, edited: Edited, review: Say
) -> None:
    named = base(lambda: edited(FILE, *TYPO))
    ended, out, err = review(named, "--json")
    assert (ended, "problems" in out) == (2, True)
    assert err.splitlines()[1].startswith(f"trnspec review: {named}: experiments/qwen3-32b.yaml:")
    assert f"the code of this tree cannot read {named}: fix what is named above, or name another BASE" in err


def test_a_base_of_other_charts_is_read_and_a_change_of_the_code_is_said(
    repository: Path, base: Base, review: Say
) -> None:
    def earlier() -> None:
        path = repository / "manifests/qwen3-32b/00-namespace.yaml"
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace("automountServiceAccountToken: false", "automountServiceAccountToken: true")
        )
        (repository / CODE).write_text("raise SystemExit('earlier')\n", encoding="utf-8")

    code, out, err = review(base(earlier))
    assert code == 1, err
    assert "**ServiceAccount " in out
    assert "1 file of the code changed (infra/__init__.py). This tree's code read both sides" in out


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
    code, out, err = review("HEAD")
    assert (code, out) == (2, ""), err
    _, told, last = err.splitlines()
    assert re.fullmatch(f"trnspec review: this tree: {problem}", told)
    assert last.startswith(
        "trnspec review: nothing was compared, because the code of this tree cannot read this tree: fix"
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
        code, out, err = review("HEAD")
        git(repository, "add", "--intent-to-add", str(mine))
        tracked = review("HEAD")
    finally:
        git(repository, "reset", "--quiet", str(mine))
        mine.unlink()
    assert (
        code,
        "| `qwen-sd-vllm` | **yes**" in out,
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
