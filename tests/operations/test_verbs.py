"""What all verbs share, `kubectl`, and `render`: what it writes, what it refuses, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from moto.core.models import DEFAULT_ACCOUNT_ID

from cdk8s_charts.manifests import ManifestFile, fill, texts, write
from tests.conftest import REFERENCE, ROOT
from tests.operations.clients import shared_client
from tests.operations.conftest import Say
from tests.operations.world import World
from trnspec.experiment import Experiment
from trnspec.operations.__main__ import main
from trnspec.operations.cloud import aws
from trnspec.operations.cloud.aws import Aws


def test_a_verb_that_another_program_carries_out_starts_anywhere_and_names_what_a_person_typed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-P", "-m", "trnspec.operations", "demo", "--help"]
    env = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: trnspec demo ")
    assert list(tmp_path.iterdir()) == []


def test_kubectl_is_the_real_one_with_its_own_exit_code(world: World, say: Say) -> None:
    code, out, _ = say("kubectl", "get", "deployments", "-o", "name")
    assert (code, out.splitlines()) == (0, ["deployment.apps/qwen-vllm", "deployment.apps/qwen-sd-vllm"])
    assert say("kubectl", "get", "deployment", "none")[0] == 1
    assert say("kubectl")[0] == 2


def _rendered(experiment: Experiment, folder: Path) -> Path:
    """Manifests with one placeholder of each kind, as the renderer writes files."""
    spec = {"image": "${BENCHMARK_IMAGE}", "bucket": "b-${AWS_ACCOUNT}"}
    pod = {"kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "immutable": True}
    config["data"] = {"prompt": "say ${AWS_ACCOUNT}"}
    write(texts(experiment, (ManifestFile("00.yaml", (pod, config)),), folder))
    return folder


def test_render_fills_placeholders_and_leaves_the_users_texts(
    say: Say, experiment: Experiment, tmp_path: Path
) -> None:
    folder = str(_rendered(experiment, tmp_path))
    image = "111122223333.dkr.ecr.us-east-2.amazonaws.com/tools:0a1b"
    given = ["render", "--resolved", "--manifests", folder, "--set", "AWS_ACCOUNT=111122223333"]
    filled = [*given, "--set", f"BENCHMARK_IMAGE={image}"]
    code, out, _ = say(*filled, "--json")
    job, config = json.loads(out)["items"]
    assert (code, job["spec"]) == (0, {"image": image, "bucket": "b-111122223333"})
    assert config["data"]["prompt"] == "say ${AWS_ACCOUNT}"
    for words, why in (
        (given, "give it with --set BENCHMARK_IMAGE=..."),
        ([*given, "--set", "BENCHMARK_IMAGE=tools:latest"], "is not a pinned image"),
        ([*given, "--set", "OTHER_IMAGE=1"], "OTHER_IMAGE"),
    ):
        code, _, err = say(*words)
        assert (code, why in err) == (2, True), err
    (tmp_path / experiment.name / "00.yaml").write_text("edited: true\n")
    code, _, err = say(*filled)
    assert (code, "or edited since" in err) == (2, True)


def test_the_experiment_is_the_first_argument_or_what_the_environment_names(
    say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = ROOT / "experiments" / "qwen3-32b-today.yaml"
    assert json.loads(say("forecast", str(other), "--json")[1])["experiment"] == "qwen3-today"
    assert json.loads(say("forecast", "--json")[1])["experiment"] == "qwen3-32b"
    monkeypatch.setenv("TRNSPEC_EXPERIMENT", str(other))
    assert json.loads(say("forecast", "--json")[1])["experiment"] == "qwen3-today"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("version: 9\n")
    assert say("forecast", "mine.yaml")[2].startswith("mine.yaml:1: version = 9")


WRONG = {
    "forecast --experiment a.yaml": "No such option '--experiment'",
    "forecast --tokens-per-mont": "No such option '--tokens-per-mont'. Did you mean '--tokens-per-month'?",
    "nodes a.yaml b.yaml 1": "Got unexpected extra argument (b.yaml)",
    "nodes": "Missing argument 'N'.",
    "nodes 0 --hours nan": "Invalid value for '--hours': 'nan' is not a number of hours",
    "forecast --mix a=1": "--mix: weighs classes whose acceptance is known; give --run results/gpu, or --acceptance FILE",
}


def test_wrong_usage_is_one_line_and_an_object_for_machines(say: Say) -> None:
    for words, line in WRONG.items():
        code, out, err = say(*words.split())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"trnspec {words.split()[0]}: {line}")
        code, out, again = say(*words.split(), "--json")
        (problem,) = json.loads(out)["problems"]
        assert (code, again) == (2, err)
        assert err == f"trnspec {words.split()[0]}: {problem['message']}\n"
    unknown = "trnspec: No such command 'forecst'. Did you mean 'forecast'? (see ./trnspec --help)\n"
    assert say("forecst") == (2, "", unknown)


def test_a_shell_completes_verbs_options_and_experiments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("_TRNSPEC_COMPLETE", "bash_complete")

    def offered(words: str, number: int) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(number))
        with pytest.raises(SystemExit):
            main([])
        return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]

    assert offered("./trnspec st", 1) == ["status"]
    assert offered("./trnspec nodes --ho", 2) == ["--hours"]
    assert offered("./trnspec re", 1) == ["report", "results", "render", "review"]
    assert offered("./trnspec results --js", 2) == ["--json"]
    assert offered("./trnspec demo --max", 2) == ["--max-tokens"]
    for words in ("check", "promote", "demo"):
        assert "experiments/qwen3-32b.yaml" in offered(f"./trnspec {words} experiments/q", 2)
    assert offered("./trnspec check llama-3.3-70b-t", 2)[1:] == ["experiments/llama-3.3-70b-tp64.yaml"]
    assert offered("./trnspec check dep", 2)[1:] == offered("./trnspec check pipe", 2)[1:] == []
    assert offered("./trnspec promote qwen-s", 2)[:1] == ["qwen-sd-vllm"]
    assert offered("./trnspec promote experiments/llama-3.1-8b-eagle3.yaml llama-e", 3)[0] == "llama-eagle3"


def test_help_imports_no_verb() -> None:
    code = "import sys; from trnspec.operations.__main__ import main; main([]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    rooms = ("trnspec.experiment", "trnspec.operations", "rich")
    imported = {name for name in done.stderr.split() if name.startswith(rooms)}
    assert imported == {"trnspec.operations", "trnspec.operations.__main__"}


ASKING = (("deploy",), ("run",), ("status",), ("nodes", "1"), ("teardown", "--confirm", "qwen3-32b"))


@pytest.mark.parametrize("verb", ASKING, ids=lambda words: words[0])
def test_credentials_of_another_account_than_deployment_yaml_names_are_refused_before_anything_else(
    verb: tuple[str, ...], account: None, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text('account: "222233334444"\n', encoding="utf-8")
    monkeypatch.setattr(aws, "DEPLOYMENT", file)
    asked: list[str] = []

    def client(own: Aws, service: str) -> Any:
        asked.append(service)
        return shared_client(service, own.region)

    monkeypatch.setattr(Aws, "_boto_client", client)
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the CDK was started"))
    code, out, err = say(*verb)
    line = (
        f"trnspec {verb[0]}: account {DEFAULT_ACCOUNT_ID}: these credentials are not of 222233334444, which "
    )
    assert (code, out, set(asked)) == (1, "", {"sts"})
    assert err == f"{line}deployment.yaml names; set AWS_PROFILE to one of that account\n"


@pytest.mark.slow
def test_deploy_asks_the_pinned_command_line_and_refuses_before(
    say: Say, credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def started(program: Path, words: list[str]) -> NoReturn:
        sys.exit(subprocess.run([program, *words[1:]], check=False).returncode)

    monkeypatch.setattr(os, "execv", started)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9")
    monkeypatch.chdir(tmp_path)
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, len(err.splitlines()), "sts:" in err) == (3, 1, True)
    (tmp_path / "mine.yaml").write_text("version: 9\n")
    code, _, err = say("deploy", "mine.yaml")
    assert (code, "mine.yaml:1: version = 9" in err) == (2, True)
    with pytest.raises(SystemExit) as ended:
        say("deploy", "--", "--help")
    assert ended.value.code == 0


IMAGES = {
    name: f"111122223333.dkr.ecr.us-east-2.amazonaws.com/{name.lower()}:0a1b"
    for name in ("BENCHMARK_IMAGE", "LMEVAL_IMAGE")
}


def test_what_would_be_rendered_is_said_for_a_machine(say: Say) -> None:
    code, out, _ = say("render", "--check", "--json")
    (one,) = json.loads(out)["rendered"]
    assert (code, Path(one["folder"]).name, one["changed"]) == (0, "qwen3-32b", [])


def _resolved(say: Say, folder: Path, *more: str) -> tuple[int, str, str]:
    values = [word for name, value in IMAGES.items() for word in ("--set", f"{name}={value}")]
    return say(
        "render", "--resolved", "--set", "AWS_ACCOUNT=111122223333", *values, "--out", str(folder), *more
    )


def test_a_folder_gets_each_reviewed_file_with_its_placeholders_filled(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "apps" / "one"
    code, said, err = _resolved(say, folder, "--json")
    assert (code, err) == (0, "")
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert sorted(json.loads(said)["changed"]) == sorted(str(folder / name) for name in written)
    reviewed = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "manifests" / "qwen3-32b").glob("*.yaml")
    }
    assert written.keys() == reviewed.keys()
    values = {**IMAGES, "AWS_ACCOUNT": "111122223333"}
    for name, text in written.items():
        wanted = fill(yaml.safe_load_all(reviewed[name]), values)
        assert list(yaml.safe_load_all(text)) == wanted, name
    assert _resolved(say, folder)[1] == f"{folder}: {len(written)} files, 0 changed\n"
    (folder / "22-fetch.yaml").write_text("# mine\n", encoding="utf-8")
    assert _resolved(say, folder)[1] == f"{folder}: {len(written)} files, 1 changed\n"
    assert (folder / "22-fetch.yaml").read_text(encoding="utf-8") == written["22-fetch.yaml"]


def test_a_folder_that_cannot_hold_the_manifests_is_refused(say: Say, tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text("kind: Mine\n", encoding="utf-8")
    code, _, err = _resolved(say, tmp_path)
    assert (code, f"--out {tmp_path}: has theirs.yaml, not of this experiment" in err) == (2, True)
    assert [path.name for path in tmp_path.glob("*.yaml")] == ["theirs.yaml"]
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, _, err = _resolved(say, tmp_path / "file")
    assert (code, f"--out {tmp_path / 'file'}: cannot be written (" in err) == (1, True)
    code, _, err = say(
        "render", "--resolved", "--out", str(tmp_path / "x"), "--set", "AWS_ACCOUNT=111122223333"
    )
    assert (code, "give it with --set BENCHMARK_IMAGE=..." in err, (tmp_path / "x").exists()) == (
        2,
        True,
        False,
    )
    assert say("render", "--out", str(tmp_path))[2].startswith("trnspec render: --out: is for --resolved")
