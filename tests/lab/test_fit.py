"""An emulated figure that was fitted to something else must say so."""

from __future__ import annotations

from dataclasses import replace

from experiment import Experiment
from lab.emulator.fit import cautions


def test_the_published_configuration_needs_no_caution(reference: Experiment) -> None:
    assert cautions(reference) == {}


def test_arms_beyond_the_fit_are_named_with_what_differs(reference: Experiment) -> None:
    baseline, treated = reference.arms
    assert treated.speculation is not None
    other = replace(treated, speculation=replace(treated.speculation, num_speculative_tokens=15))
    wider = replace(baseline, serving=baseline.serving.model_copy(update={"max_num_seqs": 2}))
    first, second = cautions(replace(reference, arms=(wider, other))).values()
    assert "qwen-vllm has 2 sequences;" in first
    assert "qwen-sd-vllm has k = 15;" in second
