"""What the catalogue says of runtimes, models, instances, node images and prices, against what they must agree on."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import NATIVE, Edit, Variation, both, combined, put
from trnspec.experiment import Experiment, InvalidExperiment, cost, load
from trnspec.experiment.__main__ import main
from trnspec.experiment.arm_forecast import configuration
from trnspec.experiment.catalogue import runtimes
from trnspec.experiment.catalogue.instances import INSTANCES, ZONES
from trnspec.experiment.catalogue.models import HEADS, MODELS
from trnspec.experiment.catalogue.prices import BLOCK_RATES
from trnspec.experiment.catalogue.published import DRAFTED, PLAIN
from trnspec.experiment.catalogue.runtimes import (
    HEAD_MODES,
    MODES,
    NODE_IMAGES,
    OLDEST_FOR_CLAIMS,
    RUNTIMES,
    Drivers,
    Runtime,
    images_of,
    serving_image,
    version,
)
from trnspec.experiment.description import as_text
from trnspec.experiment.node_rules import NEWEST_KUBERNETES, OLDEST_KUBERNETES
from trnspec.experiment.placement import pod_share
from trnspec.experiment.step_time import of_row

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
TODAY = ROOT / "experiments" / "qwen3-32b-today.yaml"
ALLOWED = [f"1.{minor}" for minor in range(OLDEST_KUBERNETES[1], NEWEST_KUBERNETES[1] + 1)]
MODEL_CARDS = {
    "Qwen/Qwen3-0.6B": 0.6,
    "Qwen/Qwen3-1.7B": 1.7,
    "Qwen/Qwen3-4B": 4.0,
    "Qwen/Qwen3-8B": 8.2,
    "Qwen/Qwen3-14B": 14.8,
    "Qwen/Qwen3-32B": 32.8,
    "meta-llama/Llama-3.2-1B-Instruct": 1.23,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "lmsys/vicuna-7b-v1.3": 6.74,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.1,
}
"""Billions of parameters, as the cards state them."""


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=lambda runtime: runtime.name)
def test_a_runtime_answers_for_every_mode_its_support_and_the_drivers_of_its_library(
    runtime: Runtime,
) -> None:
    """Driver 2.29 wants library 2.33 or later; library 2.32 wants driver 2.27 or later."""
    assert tuple(runtime.modes) == MODES
    for mode in runtime.modes.values():
        assert mode.architectures or mode.reason
        assert mode.architectures <= runtime.architectures
    dates = [date.fromisoformat(said.date) for said in runtime.support]
    assert dates == sorted(dates)
    assert all(said.source.startswith("https://awsdocs-neuron.") for said in runtime.support)
    ends = "NxD Inference ends on Trn2 with SDK 2.34" in {said.status for said in runtime.support}
    assert ends == bool(runtime.nxd_inference)
    assert runtime.support
    tag = runtime.image.rsplit(":", 1)[-1]
    assert tag.startswith(runtime.vllm)
    assert f"sdk{runtime.neuron_sdk}" in tag
    library = version(runtime.runtime_library or "")
    assert runtime.drivers.serve("2.29.0.0") == (library >= (2, 33))
    assert runtime.drivers.serve("2.26.10.0") == (library < (2, 32))
    assert "release notes" in runtime.drivers.source


def test_a_step_yields_k_or_one_more_by_who_counts_it() -> None:
    for name, mode, k, most in (
        ("nxdi-vllm-0.9.1", "fused", 7, 7),
        ("nxdi-vllm-0.16", "eagle3", 5, 5),
        ("native-vllm-0.29", "eagle3", 3, 4),
    ):
        assert RUNTIMES[name].modes[mode].tokens_per_step(k) == most


def test_model_shapes_give_the_parameters_of_the_model_card() -> None:
    computed = {model.name: model.parameters / 1e9 for model in MODELS.values()}
    assert computed == pytest.approx(MODEL_CARDS, rel=0.02)


def test_every_known_head_has_a_target_a_mode_that_some_runtime_can_do_and_a_dated_source() -> None:
    for one in HEADS.values():
        ways = [runtime.modes[one.mode] for runtime in RUNTIMES.values()]
        assert one.mode in HEAD_MODES
        if one.target != "openai/gpt-oss-20b":  # a mixture of experts, which no model of the catalogue is
            architecture = MODELS[one.target].architecture
            assert any(architecture in way.architectures for way in ways), one.name
        assert any(way.trained_window for way in ways) == (one.speculative_tokens is not None), one.name
        assert one.source.startswith("https://")
        date.fromisoformat(one.date)


def test_a_published_figure_of_an_experiment_is_that_of_its_own_configuration() -> None:
    """A row is expected of the arm whose model, chips, batch and length it was measured with."""
    plain, drafted = {row.row: row for row in PLAIN}, {row.row: row for row in DRAFTED}
    for path in EXPERIMENTS:
        experiment = load(path)
        for one in experiment.expect.figures if experiment.expect else ():
            arm = next(arm for arm in experiment.arms if arm.name == one.arm)
            row = drafted.get(one.row or "")
            base = plain.get(row.base if row else one.row or "")
            assert base is None or of_row(base) == configuration(arm), (path.name, one)
            assert row is None or (row.concurrency, row.num_speculative_tokens) == (
                one.concurrency,
                arm.num_speculative_tokens,
            )


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shares_of_a_full_node_leave_room_on_it_and_its_driver_serves_every_arm(path: Path) -> None:
    experiment = load(path)
    instance, image, devices = (
        experiment.instance,
        experiment.node_image,
        experiment.baseline.serving.devices,
    )
    assert image is not None
    share, pods = pod_share(experiment.baseline), instance.devices // devices
    assert share.cpu * pods < instance.allocatable_cpu
    assert share.memory_gib * pods < instance.allocatable_memory_gib
    assert share.cpu >= 1
    for arm in experiment.arms:
        assert arm.runtime.drivers.serve(image.neuron_driver), arm.name


def test_every_instance_type_has_a_price() -> None:
    assert INSTANCES.keys() == BLOCK_RATES.keys()


def test_the_arms_of_a_node_cost_what_the_node_costs(reference: Experiment) -> None:
    price = BLOCK_RATES["trn2.48xlarge"].usd_per_hour
    assert sum(cost.arm_usd_per_hour(reference, arm) for arm in reference.arms) == pytest.approx(price)
    assert BLOCK_RATES["trn2.3xlarge"].usd_per_hour * 16 == pytest.approx(price)


def test_regions_have_zones_and_versions_of_kubernetes_have_images_newest_first() -> None:
    assert {region for one in INSTANCES.values() for region in one.zones} == ZONES.keys()
    assert all(
        set(zones) <= set(ZONES[region]) for one in INSTANCES.values() for region, zones in one.zones.items()
    )
    assert all(zone.startswith(region) for region, zones in ZONES.items() for zone in zones)
    assert {image.kubernetes for image in NODE_IMAGES} == set(ALLOWED)
    for kubernetes in ALLOWED:
        dates = [image.date for image in images_of(kubernetes)]
        assert dates == sorted(dates, reverse=True)
    for image in NODE_IMAGES:
        assert image.release.startswith(f"{image.kubernetes}.")
        assert image.source.endswith(f"/tag/v{image.release[-8:]}")
        assert version(image.release) >= OLDEST_FOR_CLAIMS


def test_a_driver_is_judged_by_both_bounds() -> None:
    until = Drivers(oldest="2.22", newest="2.28", source="")
    serves = {"2.21.9": False, "2.28.9.1": True, "2.29.0.0": False, "2.9.1.0": False}
    assert {driver: until.serve(driver) for driver in serves} == serves
    assert Drivers(oldest="2.27.4", newest=None, source="").serve("2.27.4")


@pytest.mark.parametrize("kubernetes", ALLOWED)
@pytest.mark.parametrize(
    ("names", "driver"),
    [
        (["nxdi-vllm-0.9.1"], "2.28.0.0"),
        (["native-vllm-0.29"], "2.29.0.0"),
        (["nxdi-vllm-0.16", "native-vllm-0.29"], "2.29.0.0"),
        (["native-vllm-0.29", "nxdi-vllm-0.9.1"], "2.28.0.0"),
    ],
)
def test_the_newest_image_is_taken_that_serves_all(kubernetes: str, names: list[str], driver: str) -> None:
    image = serving_image(kubernetes, [RUNTIMES[name] for name in names])
    assert image is not None
    assert (image.kubernetes, image.neuron_driver) == (kubernetes, driver)


@pytest.mark.parametrize(
    ("edit", "dropped", "said"),
    [
        (
            "",
            "2.28.0.0",
            "runtime = 'nxdi-vllm-0.9.1': no node image for Kubernetes 1.35 serves it: nxdi-vllm-0.9.1 takes driver "
            "2.22 to 2.28, the images have 2.29.0.0; use another runtime",
        ),
        (
            "{runtime: native-vllm-0.29, arms.1.runtime: nxdi-vllm-0.9.1}",
            "1.35.6-20260625",
            "arms[1].runtime = 'nxdi-vllm-0.9.1': no node image for Kubernetes 1.35 serves these runtimes: "
            "native-vllm-0.29 takes driver 2.27 or later, nxdi-vllm-0.9.1 takes driver 2.22 to 2.28, the images have "
            '2.29.0.0; set cluster.kubernetes to "1.36", or give each runtime an experiment of its own',
        ),
    ],
)
def test_runtimes_that_no_image_serves_are_refused_with_their_bounds(
    variation: Variation, monkeypatch: pytest.MonkeyPatch, edit: str, dropped: str, said: str
) -> None:
    left = tuple(image for image in NODE_IMAGES if dropped not in (image.release, image.neuron_driver))
    monkeypatch.setattr(runtimes, "NODE_IMAGES", left)
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(combined(edit)))
    (line,) = caught.value.lines
    assert line.endswith(said)


def test_check_prints_support_image_driver_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(TODAY)]) == 0
    shown = capsys.readouterr().out
    for line in (
        "              NxD Inference ends on Trn2 with SDK 2.34 (2026-10-16)\n",
        "              vLLM Neuron is a beta in SDK 2.33 (2026-10-19)\n",
        "  node image  1.35.6-20260625, Neuron driver 2.28.0.0\n",
        "nxdi-vllm-0.9.1: vLLM 0.9.1, Neuron SDK 2.26.1, driver 2.22 to 2.28\n",
        "native-vllm-0.29: vLLM 0.29.0, Neuron SDK 2.33.0, driver 2.27 or later\n",
    ):
        assert line in shown
    assert main(["check", str(TODAY), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {entry["runtime"] for entry in told["support"]} == {"native-vllm-0.29", "nxdi-vllm-0.9.1"}
    assert set(told["support"][0]) == {"runtime", "status", "date", "source", "ends"}
    assert told["node_image"] == {
        "release": "1.35.6-20260625",
        "neuron_driver": "2.28.0.0",
        "source": "https://github.com/awslabs/amazon-eks-ami/releases/tag/v20260625",
    }


def test_no_node_image_is_pinned_whose_kernel_panics() -> None:
    panics = [image for image in NODE_IMAGES if image.date in ("20260930", "20261003")]
    assert [image for image in panics if image.kubernetes in ("1.31", "1.32", "1.33", "1.34", "1.35")] == []


def test_a_published_start_is_quoted_and_an_hour_assumed_where_none_is(variation: Variation) -> None:
    def compiling(*edits: Edit) -> cost.RunPart:
        return next(part for part in cost.run_parts(load(variation(both(*edits)))) if part.step == "compile")

    plain = put("arms", [{"name": "a"}, {"name": "b", "engine": {"num_seqs_buckets": [1, 4]}}])
    native = both(NATIVE, plain)
    quoted = compiling(native)
    assert quoted.hours == pytest.approx(214.3 / 3600)
    assert quoted.assumption.startswith(
        "quoted: a start of up to 214 s without a compile cache, for 1 artifact"
    )
    small = compiling(native, put("target.model", "Qwen/Qwen3-8B"))
    assert small.hours == pytest.approx(491.4 / 3600), "the longest of what was published"
    for unpublished in (both(native, put("target.model", "Qwen/Qwen3-14B")), put("name", "reference")):
        guessed = compiling(unpublished)
        assert (guessed.hours, guessed.assumption[:8]) == (cost.COMPILE_H, "assumed:")
    like = next(
        part
        for part in cost.run_parts(load(ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml"))
        if part.step == "compile"
    )
    assert like.hours == pytest.approx(2 * 491.4 / 3600), (
        "Llama-3.1-8B as Qwen3-8B, and its EAGLE3 arm twice as long"
    )
    assert like.assumption.startswith("assumed: as the published start of Qwen3-8B without a compile cache")


def test_the_first_native_arm_is_predicted_to_be_compiled_and_started_before_the_others() -> None:
    small = load(ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml")
    hours = {part.step: part.hours for part in cost.run_parts(small)}
    assert hours["first"] == pytest.approx(491.4 / 3600 + cost.LOAD_H), "the plain arm"
    for experiment, missing in ((small, 1), (small, 0), (load(REFERENCE), 2)):
        steps = {part.step for part in cost.run_parts(experiment, to_compile=missing)}
        assert "first" not in steps


def test_a_compilation_and_a_start_may_take_a_multiple_of_what_is_predicted() -> None:
    """No time of NxD Inference is published, so an hour is predicted; its servers never compile."""
    eagle, fused = (load(ROOT / f"experiments/{name}.yaml") for name in ("llama-3.1-8b-eagle3", "qwen3-32b"))
    assert cost.compile_deadline_s(eagle) == 1.5 * 3600, "an hour at least, and half an hour"
    assert cost.compile_deadline_s(fused) == 3.5 * 3600
    assert cost.start_budget_s(fused) == cost.LOAD_BUDGET_S
    assert cost.start_budget_s(eagle) == cost.LOAD_BUDGET_S + int(2 * 2 * 491.4)


def test_check_says_where_aws_tested_another_driver_and_quotes_the_starts_it_knows(
    variation: Variation,
) -> None:
    native = as_text(load(variation(both(NATIVE, put("arms.0.name", "plain")))))
    assert "driver 2.29.0.0 of the node image with native-vllm-0.29: AWS tested it with driver 2.31" in native
    assert "compile time of plain: a start without a compile cache took 214 s elsewhere (quoted)" in native
    assert "compile time of the other arms: no figure is published" in native
    shared = " ".join(as_text(load(TODAY)).split())
    assert "native-vllm-0.29 and nxdi-vllm-0.9.1 on one node: driver 2.28.0.0, the newest" in shared
    assert "on one node" not in native
    assert "AWS tested it" not in as_text(load(TODAY.with_name("qwen3-32b.yaml")))
