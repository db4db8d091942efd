"""Models that Hugging Face hands to accepted users only, against a hub on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from core.findings import Finding, Outside, State
from experiment import Experiment, load
from experiment.catalogue.models import MODELS
from operations.cloud.aws import Aws
from operations.preflight import reach
from operations.preflight.checklist import judge
from operations.preflight.reach import Web, guarded, licences
from tests.conftest import ROOT
from tests.operations.clock import START
from tests.store.conftest import TOKEN, StandInHub, hub

__all__ = ["hub"]
LLAMA = ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml"
Asked = Callable[..., Finding]


@pytest.fixture
def asked(experiment: Experiment, hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Asks for `org/model` at a revision, with a token."""

    def ask(token: str | None, *, model: str = "org/model", revision: str | None = None) -> Finding:
        monkeypatch.setenv("HF_TOKEN", token or "")
        weights = replace(
            experiment.baseline.target,
            model=replace(MODELS["Qwen/Qwen3-0.6B"], name=model, gated=True),
            revision=revision,
        )
        arm = replace(experiment.baseline, target=weights)
        return licences(replace(experiment, arms=(arm,), token_secret="hf-token"), endpoint=hub.url)

    return ask


def test_a_token_whose_account_accepted_the_licence_is_fine_and_nothing_is_downloaded(
    asked: Asked, hub: StandInHub
) -> None:
    hub.gated = True
    found = asked(TOKEN)
    assert (found.state, found.why) == (
        State.FINE,
        "HF_TOKEN may read org/model; Secret hf-token must hold the same token",
    )
    assert hub.downloaded == []
    del hub.files["config.json"]
    assert asked(TOKEN).state is State.FINE, "a head without that file is handed out as well"


def test_what_the_hub_refuses_is_a_finding_with_what_to_do(asked: Asked, hub: StandInHub) -> None:
    unknown = asked(TOKEN, model="org/other")
    assert (unknown.state, unknown.why) == (
        State.FINDING,
        "org/other does not exist on Hugging Face, or HF_TOKEN may not see it",
    )
    absent = asked(TOKEN, revision="b" * 40)
    assert (absent.state, absent.why) == (State.FINDING, f"org/model has no revision {'b' * 40}")
    hub.gated = True
    found = asked("hf_somebody-else")
    assert (found.state, found.why) == (
        State.FINDING,
        "org/model is gated, and the account of HF_TOKEN has no access",
    )
    assert "accept its licence on https://huggingface.co/org/model" in found.remedy


def test_without_a_token_or_an_answer_nobody_knows(
    asked: Asked, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Outside, match="HF_TOKEN is not set, so it is not known whether org/model can be"):
        asked(None)
    hub.url = "http://127.0.0.1:1"
    with pytest.raises(Outside, match="Hugging Face could not be asked"):
        asked(TOKEN)


def test_preflight_asks_for_gated_models_alone_and_before_anything_is_rented(
    experiment: Experiment, credentials: None, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guarded(experiment) == ()
    llama = load(LLAMA)
    assert [one.model.name for one in guarded(llama)] == [one.model.name for one in llama.weights]
    elsewhere = replace(llama.baseline, target=replace(llama.baseline.target, address="s3://mine/llama"))
    assert guarded(replace(llama, arms=(elsewhere,))) == ()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(reach, "reachable", lambda *_: Finding("", None, "", state=State.FINE))
    web = Web()
    web.hub = hub.url
    checks = {one.check: one for one in judge(llama, Aws("ap-south-2"), web, now=START)}
    assert checks["licences"].state is State.FINDING
    assert checks["licences"].why.startswith("meta-llama/Llama-3.1-8B-Instruct does not exist")
