"""`render --resolved --out DIR`: what it writes, what it refuses, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cdk8s_charts.gitops import APPLICATION, KUSTOMIZATION
from cdk8s_charts.manifests import output_of, texts, with_tags, write
from cdk8s_charts.render import render
from experiment import load
from operations.rendering import place_in_repository
from tests.operations.clients import make_stacks
from tests.operations.conftest import Say
from tests.operations.world import World

IMAGES = {
    name: f"111122223333.dkr.ecr.us-east-2.amazonaws.com/{name.lower()}:0a1b"
    for name in ("BENCHMARK_IMAGE", "LMEVAL_IMAGE")
}
ADDRESSES = {output_of(name): address for name, address in IMAGES.items()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder in a clone, that is not there yet."""
    clone = tmp_path / "fleet"
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    address = "git@git.example.com:team/fleet.git"
    subprocess.run(["git", "-C", str(clone), "remote", "add", "origin", address], check=True)
    return clone / "apps" / "one"


@pytest.fixture
def deployed(world: World) -> None:
    make_stacks("qwen3-32b", "workloads", outputs=ADDRESSES)


def test_what_would_be_rendered_is_said_for_a_machine(say: Say) -> None:
    code, out, _ = say("render", "--check", "--json")
    (one,) = json.loads(out)["rendered"]
    assert (code, Path(one["folder"]).name, one["changed"]) == (0, "qwen3-32b", [])


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.mark.usefixtures("deployed")
def test_the_folder_is_filled_from_the_stack_and_a_second_rendering_changes_nothing(
    say: Say, out: Path
) -> None:
    code, said, err = say("render", "--resolved", "--out", str(out), "--json")
    assert (code, err) == (0, "")
    first = _contents(out)
    assert sorted(json.loads(said)["changed"]) == sorted(str(out / name) for name in first)
    tag = with_tags(IMAGES)["BENCHMARK_IMAGE_TAG"]
    assert f"-{tag}\n" in first["22-fetch.yaml"]
    assert IMAGES["BENCHMARK_IMAGE"] in first["40-qwen-llmperf.yaml"]
    assert "${" not in first["20-storage.yaml"] + first["22-fetch.yaml"]
    listed = {*yaml.safe_load(first[KUSTOMIZATION])["resources"], KUSTOMIZATION, APPLICATION}
    assert listed == first.keys()
    source = yaml.safe_load(first[APPLICATION])["spec"]["source"]
    assert (source["repoURL"], source["path"]) == ("git@git.example.com:team/fleet.git", "apps/one")
    assert say("render", "--resolved", "--out", str(out))[1] == f"{out}: {len(first)} files, 0 changed\n"
    assert _contents(out) == first


@pytest.mark.usefixtures("deployed")
def test_what_is_no_longer_rendered_goes_and_a_promoted_arm_waits_for_its_artifact(
    say: Say, world: World, out: Path, variation: Callable[..., Path], tmp_path: Path
) -> None:
    """Its pods would hold the devices that its compile Job waits for."""
    assert say("render", "--resolved", "--out", str(out))[0] == 0
    (out / "theirs.yaml").write_text("kind: Mine\n", encoding="utf-8")
    before = _contents(out)
    served = {"arm": "qwen-sd-vllm", "replicas": 1}
    path = variation(lambda data: (data["benchmark"].pop("lm_eval"), data.update(serve=served)))
    write(texts(load(path), render(load(path)), tmp_path / "manifests"))
    words = ("render", str(path), "--manifests", str(tmp_path / "manifests"), "--resolved", "--out", str(out))
    code, _, err = say(*words)
    assert (code, "qwen-sd-vllm: has no compiled artifact" in err) == (1, True)
    assert _contents(out) == before
    world.compiled("qwen-sd-vllm")
    code, _, err = say(*words)
    assert (code, err) == (0, "")
    left = _contents(out)
    assert not any("45-qwen-lmeval.yaml" in there for there in (left, left[KUSTOMIZATION]))
    assert left["theirs.yaml"] == "kind: Mine\n"
    assert "replicas: 1" in left["30-qwen-sd-vllm.yaml"]


@pytest.mark.usefixtures("deployed")
def test_an_edited_file_is_named_and_nothing_is_written(say: Say, out: Path) -> None:
    assert say("render", "--resolved", "--out", str(out))[0] == 0
    (out / "30-qwen-vllm.yaml").unlink()  # which would be written
    rendered = _contents(out)
    edited = {
        "22-fetch.yaml": (rendered["22-fetch.yaml"] + "# mine\n", "was edited since it was rendered"),
        KUSTOMIZATION: ("kind: Kustomization\n", "was not rendered by this verb"),
        APPLICATION: (rendered[APPLICATION].replace("qwen3-32b,", "x,", 1), "was rendered from x"),
    }
    for name, (text, why) in edited.items():
        (out / name).write_text(text, encoding="utf-8")
        code, _, err = say("render", "--resolved", "--out", str(out))
        assert (code, len(err.splitlines())) == (2, 1)
        assert f"{name}: {why}" in err
        assert _contents(out) == rendered | {name: text}
        (out / name).write_text(rendered[name], encoding="utf-8")


def test_a_stack_that_does_not_say_what_to_fill_in_is_one_line(say: Say, world: World, out: Path) -> None:
    told: list[tuple[dict[str, str] | None, str]] = [
        (None, "stack qwen3-32b-workloads: none in account 123456789012, us-east-2; run ./trnspec deploy"),
        ({}, "has no output BenchmarkImageAddress, LmevalImageAddress, so it applies the manifests itself"),
        ({"BenchmarkImageAddress": "a.example/b:1"}, "has no output LmevalImageAddress, "),
    ]
    for outputs, line in told:
        if outputs is not None:
            world.client("cloudformation").delete_stack(StackName="qwen3-32b-workloads")
            make_stacks("qwen3-32b", "workloads", outputs=outputs)
        code, _, err = say("render", "--resolved", "--out", str(out))
        assert (code, len(err.splitlines())) == (1, 1)
        assert line in err
        assert not out.exists()


@pytest.mark.usefixtures("deployed")
def test_a_place_or_state_that_gitops_cannot_read_is_refused(say: Say, out: Path, tmp_path: Path) -> None:
    def written(folder: Path, *more: str) -> tuple[int, str]:
        code, _, err = say("render", "--resolved", "--out", str(folder), *more)
        return code, err

    code, err = written(out, "--manifests", str(tmp_path))
    assert (code, "is not rendered there; run ./trnspec render" in err, out.exists()) == (2, True, False)
    code, err = written(tmp_path / "nowhere")
    assert (code, "is not in a clone of a git repository with a remote origin" in err) == (2, True)
    (tmp_path / "loop").symlink_to("loop")
    assert "is not in a clone" in written(tmp_path / "loop" / "x")[1]
    out.parent.mkdir()
    out.write_text("a file", encoding="utf-8")
    code, err = written(out)
    assert (code, f"--out {out}: cannot be written (" in err) == (1, True)
    assert say("render", "--out", str(out))[2].startswith("trnspec render: --out: is for --resolved")


def test_no_password_of_a_clone_gets_into_the_repository(out: Path) -> None:
    host = "git.example.com"
    told = {
        f"https://user:secret@{host}/team/fleet.git": f"https://{host}/team/fleet.git",
        f"https://{host}/fleet.git?private_token=secret": f"https://{host}/fleet.git",
        f"ssh://git:secret@{host}:22/fleet.git": f"ssh://git@{host}:22/fleet.git",
        f"git@{host}:team/fleet.git": f"git@{host}:team/fleet.git",
    }
    for remote, shown in told.items():
        command = ["git", "-C", str(out.parents[1]), "remote", "set-url", "origin", remote]
        subprocess.run(command, check=True)
        assert place_in_repository(out) == (shown, "apps/one")
