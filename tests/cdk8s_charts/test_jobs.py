"""Fetching and compiling: who does it, where, that a repetition is harmless; scripts as a shell runs them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.parity import options
from cdk8s_charts.stores import UNUSABLE, marker_check
from cdk8s_charts.workloads.artifact_jobs import compiling_job, fetching_job
from tests.cdk8s_charts.objects import Case, Object, Pod, committed, named, pods_of
from tests.cdk8s_charts.variations import rendered
from tests.conftest import REFERENCE, ROOT
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.description import as_text
from trnspec.experiment.naming import ARTIFACT_KEY
from trnspec.store import FILES as FILES_LIST
from trnspec.store import MARKER, artifact
from trnspec.store.__main__ import door

FILES = (artifact.CONFIGURATION, "model.pt")
WEIGHTS = ("target", "draft")
Done = subprocess.CompletedProcess[str]


def _run(command: list[str]) -> Done:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _check(reference: Experiment, folder: Path) -> Done:
    shell, flag, script, name, _artifact, key, files, *weights = marker_check(reference.arms[1])["command"]
    assert len(weights) == len(WEIGHTS)
    assert files.split() == list(FILES)
    paths = [str(folder / weight) for weight in WEIGHTS]
    return _run([shell, flag, script, name, str(folder / "artifact"), key, files, *paths])


@pytest.mark.parametrize(
    ("damaged", "text", "words"),
    [
        (f"artifact/{MARKER}", None, "missing or unfinished"),
        (
            f"artifact/{MARKER}",
            artifact.marker_of("0123456789abcdef"),
            'made for {"key": "0123456789abcdef"}',
        ),
        (f"artifact/{MARKER}", "", "was made for ;"),
        *((f"artifact/{name}", None, f"{name} is missing although marked complete") for name in FILES),
        *((f"{name}/{MARKER}", None, "needs weights that are missing or unfinished") for name in WEIGHTS),
    ],
)
def test_all_but_complete_weights_and_the_arms_own_artifact_end_the_pod_with_one_line(
    reference: Experiment, tmp_path: Path, damaged: str, text: str | None, words: str
) -> None:
    key = artifact_key(reference.arms[1])
    for name in ("artifact", *WEIGHTS):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).write_text('{"files": []}\n')
    for name in FILES:
        (tmp_path / "artifact" / name).write_text("x")
    (tmp_path / "artifact" / MARKER).write_text(artifact.marker_of(key))
    done = _check(reference, tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / damaged).unlink()
    if text is not None:
        (tmp_path / damaged).write_text(text)
    done = _check(reference, tmp_path)
    assert done.returncode == (UNUSABLE if "although" in words else 1)
    (line,) = done.stderr.splitlines()
    assert words in line
    assert key in line


def test_a_native_server_wants_a_compiled_graph_in_the_list_of_its_artifact(tmp_path: Path) -> None:
    arm = load(ROOT / "experiments/llama-3.1-8b-eagle3.yaml").arms[0]
    *command, _folder, key, files, _weights = marker_check(arm)["command"]
    (tmp_path / MARKER).write_text(artifact.marker_of(key))
    (tmp_path / FILES_LIST).write_text('{"files": [{"path": "home/.cache/x", "size": 1}]}')
    done = _run([*command, str(tmp_path), key, files])
    assert (done.returncode, "*.neff is missing although marked complete" in done.stderr) == (UNUSABLE, True)
    (tmp_path / FILES_LIST).write_text('{"files": [{"path": "neff/ab/cd.neff", "size": 1}]}')
    assert _run([*command, str(tmp_path), key, files]).returncode == 0


def test_a_compilation_that_broke_off_goes_on_with_its_cache_leaves_readable_files_and_is_not_repeated(
    reference: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = Pod(compiling_job(reference, reference.arms[1])).container("compile")
    shell, flag, script, name, path, files, *_ = container["command"]
    script, path = (text.replace("/scratch", str(tmp_path)) for text in (script, path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def compiled(command: str) -> Done:
        return _run([shell, flag, script, name, path, files, "/bin/sh", "-c", command])

    assert files == "neuron_config.json model.pt"
    folder = tmp_path / "artifacts" / artifact_key(reference.arms[1])
    cache, tries = f"{folder}.cache", tmp_path / "tries"
    assert compiled(f"echo try >> {tries}; exit 3").returncode == 3
    assert tries.read_text() == "try\n", "what is refused at once is not tried again"
    breaks = f"ls {folder} {cache}; mkdir -p {cache}; [ -e {cache}/a.neff ] || {{ echo x | tee {cache}/a.neff {folder}/model.pt; exit 4; }}"
    inner = folder / "inner"
    done = compiled(f"{breaks}; umask 077; mkdir {inner}; touch {inner}/graph.neff")
    assert done.returncode == 0, done.stderr
    last = done.stdout.split("x\n")[-1]
    assert "a.neff" in last
    assert "model.pt" not in last
    assert inner.stat().st_mode & 0o050 == 0o050
    assert (inner / "graph.neff").stat().st_mode & 0o040
    assert compiled(f"touch {cache}/b.neff; exit 5").returncode == 5, "once more, not for ever"
    (tmp_path / "already-complete").touch()
    assert compiled("false").returncode == 0


def test_a_digest_in_the_catalogue_is_what_every_pod_of_the_image_runs_and_what_the_artifact_is_named_after(
    reference: Experiment,
) -> None:
    """One place: a digest from elsewhere would make what runs another thing than the manifests that were reviewed."""
    known = RUNTIMES["nxdi-vllm-0.9.1"]
    image = f"{known.image}@sha256:{'0' * 64}"
    runtime = replace(known, image=image)
    pinned = replace(reference, arms=tuple(replace(arm, runtime=runtime) for arm in reference.arms))
    text, before = (json.dumps(rendered(one)) for one in (pinned, reference))
    assert text.count(image) == before.count(known.image) == text.count(known.image)
    for arm, unpinned in zip(pinned.arms, reference.arms, strict=True):
        assert artifact_key(arm) in text
        assert artifact_key(unpinned) in before
        assert artifact_key(unpinned) not in text
    assert "digest of" in as_text(reference)
    assert "digest of" not in as_text(pinned)


def test_a_token_is_a_file_from_the_named_secret_and_stands_in_no_command(reference: Experiment) -> None:
    gated = replace(reference, token_secret="hf-token")
    pod = Pod(fetching_job(gated, gated.weights[0]))
    assert pod.volumes["token"]["secret"]["secretName"] == "hf-token"
    (container,) = pod.containers
    assert container["args"][-2:] == ["--token-file", "/token/token"]
    assert "token" not in str(container.get("env"))
    assert "token" not in Pod(fetching_job(reference, reference.weights[0])).volumes


def test_a_model_of_ones_own_is_fetched_compared_served_and_measured_under_its_name(
    reference: Experiment,
) -> None:
    base = reference.baseline.target
    mine = replace(base, model=replace(base.model, name="my-org/mine"), shape_of=base.model.name)
    objects = rendered(replace(reference, arms=tuple(replace(arm, target=mine) for arm in reference.arms)))
    assert base.model.name not in json.dumps(objects)
    for server in pods_of(named(objects, "Deployment").values()):
        assert options(server.container("vllm")["command"])["--served-model-name"] == "my-org/mine"
        assert "my-org/mine/unpinned" in json.dumps(server.spec)
    assert not _artifacts(committed(REFERENCE)) & _artifacts(objects)
    (fetch,) = [job for job in named(objects, "Job").values() if '"my-org/mine"' in json.dumps(job)]
    expected = _understood(_told(fetch))["expect"]
    assert (expected["hidden_size"], expected["num_hidden_layers"]) == (5120, 64)
    elsewhere = fetching_job(reference, replace(mine, address="s3://my-models/mine"))
    assert _understood(_told(elsewhere))["folder"] == "s3://my-models/mine"
    assert "--expect" not in _told(fetching_job(reference, base))


def _understood(arguments: list[str]) -> dict[str, Any]:
    return door.commands[arguments[0]].make_context(arguments[0], arguments[1:]).params


def _told(job: Object) -> list[str]:
    (container,) = Pod(job).containers
    arguments: list[str] = container["args"]
    return arguments


def _artifacts(objects: list[Object] | tuple[Object, ...]) -> set[str]:
    return {pod.metadata["annotations"][ARTIFACT_KEY] for pod in pods_of(objects) if pod.kind == "Deployment"}


def test_the_store_understands_every_command_that_pods_give_it(case: Case) -> None:
    store = ["python", "-m", "trnspec.store"]
    told = [one["args"] for pod in pods_of(case[1]) for one in pod.containers if one.get("command") == store]
    assert told
    for arguments in told:
        _understood(arguments)


def test_a_pod_that_goes_with_its_spot_node_is_no_retry(case: Case) -> None:
    experiment, objects = case
    jobs = [one for one in objects if one["kind"] == "Job" and "podFailurePolicy" in one["spec"]]
    ignored = [
        [
            rule.get("onPodConditions")
            for rule in job["spec"]["podFailurePolicy"]["rules"]
            if rule["action"] == "Ignore"
        ]
        for job in jobs
    ]
    spot = experiment.cluster.capacity.kind == "spot"
    assert ignored == [[[{"type": "DisruptionTarget"}]] if spot else []] * len(jobs)
    assert all(job["spec"]["template"]["spec"]["restartPolicy"] == "Never" for job in jobs), (
        "else it is refused"
    )
