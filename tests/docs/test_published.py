"""The guides on published results say what the table and its forecast give today."""

from __future__ import annotations

import re

from experiment import ledger, load
from experiment.catalogue.published import REFERENCE
from experiment.cost import run_price
from experiment.decoding import of_row, published_forecaster
from experiment.expected import expected_of
from tests.conftest import ROOT


def _guide(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def test_the_guide_is_what_the_command_prints() -> None:
    text = (ROOT / "docs/published.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- published: begin -->\n```\n(.*?)```\n<!-- published: end -->", text, re.DOTALL)
    assert shown is not None
    assert shown[1].rstrip("\n") == "\n".join(ledger.as_lines())


def test_the_parts_of_the_reference_step_are_those_of_the_forecast() -> None:
    by, own = published_forecaster(), of_row(REFERENCE)
    step, text = by.plain(own), _guide("where-the-time-goes.md")
    assert step.likely_s is not None
    assert step.high_s is not None
    for part in (
        own.bound_s,
        by.fit.layer_s * own.shape.layers,
        by.fit.cache_factor * own.cache_s,
        step.likely_s,
    ):
        assert f"| {part * 1000:.1f} |" in text
    assert f"{step.low_s * 1000:.1f} to {step.high_s * 1000:.1f}" in text
    assert f"{REFERENCE.tpot_s / step.likely_s:.1f} times" in text
    for name in ("where-the-time-goes.md", "reproduce.md", "../README.md"):
        assert f"{step.likely_s * 1000:.1f}" in _guide(name), name


def test_what_drafting_must_yield_is_that_of_the_forecast() -> None:
    experiment = load(ROOT / "experiments/qwen3-32b.yaml")
    step, text = expected_of(experiment, experiment.arms[1]).drafted, _guide("where-the-time-goes.md")
    assert step is not None
    assert step.likely is not None
    assert f"about {step.likely:.1f} tokens a step" in text
    assert f"factor of about {step.most_tokens / step.likely:.1f}" in text


def test_the_price_of_the_baselines_is_that_of_its_run() -> None:
    run = run_price(load(ROOT / "experiments/qwen3-32b-baselines.yaml"))
    assert f"about ${run.usd:.0f}" in _guide("where-the-time-goes.md")
