"""What is said about dollars before any is spent: `forecast`, whose bounds cannot be crossed and whose evidence must suffice;
`run --dry-run`, `check`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import plan_content
from tests.benchmark.records import raw_run, store
from tests.cdk8s_charts.objects import objects_of
from tests.conftest import NODE_USD, REFERENCE, ROOT
from tests.experiment.edits import put
from tests.operations.conftest import Say
from tests.operations.test_verbs import _rendered
from trnspec.benchmark.analyse.window_advice import forecast
from trnspec.benchmark.formats.acceptance_files import survivals
from trnspec.benchmark.plan import from_dict
from trnspec.core.findings import Misuse, State
from trnspec.experiment import Experiment, load
from trnspec.experiment.arm_forecast import expected_of
from trnspec.experiment.catalogue.published import DRAFTED, PLAIN
from trnspec.experiment.description import as_json
from trnspec.lab.demo import _step as demonstrated_step
from trnspec.operations.__main__ import main
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.forecast import of_experiment
from trnspec.operations.preflight.quota_and_zone import instance_offered as where_offered
from trnspec.operations.rental import Prediction, Steps, measured, predict, published

ALL = [1.0] * 7
NONE = [0.0] * 7
SOME = [0.9, 0.8, 0.6, 0.4, 0.3, 0.2]
FEW = [0.5, 0.2, 0.1, 0.0, 0.0, 0.0]
PAYS = "Rent. Arm qwen-sd-vllm is predicted to decode 2.01 times as fast (range 1.60 to 6.47) for structured. It costs $6.7 to "


def _file(folder: Path, shares: dict[str, list[float]]) -> Path:
    path = folder / "acceptance.json"
    path.write_text(json.dumps(shares), encoding="utf-8")
    return path


def _predict(experiment: Experiment, steps: Steps, path: Path) -> tuple[Prediction, ...]:
    evidence = partial(forecast, survivals(path), basis=str(path))
    return predict(experiment, experiment.arms[1], steps=steps, evidence=evidence, mix=None)


def test_a_mixture_lies_between_the_ceiling_and_what_cannot_pay(
    reference: Experiment, tmp_path: Path
) -> None:
    steps = published(expected_of(reference, reference.arms[1]))
    best, worst, both = _predict(reference, steps, _file(tmp_path, {"a": ALL, "b": NONE}))
    assert best.tokens_per_step == 7, "k drafts yield k tokens on this runtime, not k + 1"
    assert best.speed_up == pytest.approx(2.0, abs=0.1)
    assert 1 < best.low < best.speed_up < best.high
    assert (best.verdict, worst.verdict, both.class_name) == ("pays", "does not pay", "all classes")
    assert worst.high < 1
    assert worst.speed_up < both.speed_up < best.speed_up
    assert worst.tokens_per_step < both.tokens_per_step < best.tokens_per_step
    (one,) = _predict(reference, measured({0: 0.045, 7: 0.09}, 7), _file(tmp_path, {"half": ALL}))
    assert one.low == one.speed_up == one.high == pytest.approx(7 * 0.045 / 0.09), "no bounds where measured"
    # Half a trn2.48xlarge, four sequences, one token each in 45 ms.
    usd = NODE_USD / 2 / (4 / 0.045 * 3600) * 1e6
    assert one.baseline_usd_per_million == pytest.approx((usd, usd))
    assert one.usd_per_million == pytest.approx((usd / one.speed_up, usd / one.speed_up))


def test_step_times_beside_the_arms_own_leave_a_range_and_none_are_guessed(reference: Experiment) -> None:
    steps = measured({0: 0.0126, 3: 0.02}, 7)
    assert steps.origin == "as given; k = 7 was not timed, so a range follows"
    assert steps.fast.step_s(7) == pytest.approx(0.02)
    assert steps.likely.step_s(7) == pytest.approx(0.0126 + 7 / 3 * 0.0074)
    assert steps.slow.step_s(7) == pytest.approx(0.0126 + (7 / 3) ** 2 * 0.0074), (
        "each draft costs more than the one before"
    )
    with pytest.raises(Misuse, match=r"--step-times 7=1e-06: is shorter than the plain step of 0.01 s"):
        measured({0: 0.01, 7: 1e-6}, 7)
    arm = reference.arms[1]
    other = replace(arm, serving=arm.serving.model_copy(update={"max_num_seqs": 8}))
    with pytest.raises(Misuse, match=r"more than 4 sequences .* times the formula.*; give --step-times"):
        published(expected_of(reference, other))


def _said(
    path: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> tuple[str, list[str]]:
    """The sentence that the output begins with, and the lines below it."""
    given = ["--acceptance", str(path)] if path.name else []
    assert main(["forecast", str(REFERENCE), *given, *words]) == code
    first, below = capsys.readouterr().out.split("\n\n", 1)
    return " ".join(first.split()), below.splitlines()


@pytest.mark.parametrize(
    ("shares", "code", "begins", "says"),
    [
        ({"structured": ALL, "noise": NONE}, 0, PAYS, "For noise drafting costs more than it saves"),
        ({"structured": ALL, "open": FEW}, 0, "Rent. ", "For open drafting may or may not pay"),
        ({"some": SOME}, 0, "Rent only to find out. ", "One run to find out costs $"),
        ({"a": FEW, "b": NONE}, 0, "Do not rent. ", "is likely to cost more than it saves for a and b"),
        ({"noise": NONE}, 1, "Do not rent. ", "drafting costs more than it saves for noise"),
    ],
)
def test_the_forecast_begins_with_whether_to_rent_and_for_what(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shares: dict[str, list[float]],
    code: int,
    begins: str,
    says: str,
) -> None:
    sentence, below = _said(_file(tmp_path, shares), capsys, code=code)
    assert sentence.startswith(begins)
    assert says in sentence
    assert below[0].startswith(
        "PREDICTED, nothing ran on Trn2: arm qwen-sd-vllm of qwen3-32b, 7 draft tokens"
    )
    for words in ("nothing ran on Trn2", *shares):
        assert words in " ".join(below), words
    assert all(len(line) <= 100 for line in below)


def test_a_month_of_traffic_says_when_the_run_is_paid_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: of 500 million tokens a quarter are structured, and each million of those costs half of $15.7 less."""
    path = _file(tmp_path, {"structured": ALL, "noise": NONE})
    given = [
        "--tokens-per-month",
        "500M",
        "--mix",
        "structured=1,noise=3",
        "--step-times",
        "0=0.0126,7=0.0441",
    ]
    sentence, _ = _said(path, capsys, *given)
    saved = NODE_USD / 2 / (4 / 0.0126 * 3600) * 1e6 / 2
    assert main(["forecast", str(REFERENCE), "--acceptance", str(path), *given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    decision, usd = said["decision"], said["rental"]["usd"]
    assert usd == pytest.approx(8 * 38.52, rel=0.01), "a whole block; the cluster costs a little too"
    assert decision["repaid_after_million_tokens"] == pytest.approx([usd / saved] * 2, rel=1e-3)
    assert decision["repaid_after_months"] == pytest.approx([usd / saved / 125] * 2, rel=1e-3)
    assert decision["classes"] == ["structured"]
    assert main(["forecast", str(REFERENCE), "--acceptance", str(path), "--mix", "noise=1"]) == 0
    assert capsys.readouterr().out.startswith("Do not rent. "), "none of the traffic is structured"
    days = round(usd / saved / 125 * 30)
    assert f"million output tokens of structured ({days} days of your traffic)" in sentence
    for wrong in ("many", "0", "1e9", "5MM", "-5M"):
        assert main(["forecast", str(REFERENCE), "--tokens-per-month", wrong]) == 2
        assert "is not a number of tokens, as in 500M" in capsys.readouterr().err


def test_without_acceptance_it_says_what_acceptance_would_be_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--step-times", "0=0.01,7=0.0393"]
    sentence, _ = _said(Path(), capsys, *given)
    assert (
        "pays if a step yields more than 3.9 tokens. A step yields at most 7. For 3.9, each draft must be accepted 80 % of the time"
        in sentence
    )
    assert (
        "million output tokens at the earliest" in sentence
    )  # 1 + 0.8 + 0.8^2 + ... to the sixth power is 3.95
    assert sentence.endswith("forecast experiments/qwen3-32b.yaml --run results/gpu")
    assert "--out results/gpu" in (ROOT / "docs" / "decide.md").read_text(encoding="utf-8")
    assert main(["forecast", str(REFERENCE), *given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["classes"], said["decision"]["advice"]) == ([], "measure")
    sentence, _ = _said(Path(), capsys, "--step-times", "0=0.01,7=0.08")
    assert sentence.startswith("Do not rent. ")


def test_classes_are_taken_together_only_where_all_of_them_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, {"json": ALL, "code": ALL})
    asked = ["forecast", str(REFERENCE), "--acceptance", str(path)]
    assert main(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    above, _, below = said.partition(
        "Nothing is known of repetition, numeric and open-ended, so there is no row"
    )
    assert ("all classes " in above, bool(below)) == (False, True)
    assert main([*asked, "--mix", "json=1,code=3"]) == 0
    said = capsys.readouterr().out
    assert ("all classes " in said, "Nothing is known" in said) == (True, False)


def test_a_run_tells_of_the_classes_whose_prompts_it_asked_whatever_they_are_called(
    reference: Experiment, tmp_path: Path
) -> None:
    steps = published(expected_of(reference, reference.arms[1]))
    rows = _predict(reference, steps, _file(tmp_path, {"json": ALL, "mine": ALL}))
    shipped = [one.contents[0] for one in reference.prompts if one.class_name == "code"]
    prompts = [("json", "Another prompt."), *(("mine", text) for text in shipped)]
    asked = [{"id": str(n), "class": name, "prompt": text} for n, (name, text) in enumerate(prompts)]
    plan = from_dict(plan_content(prompts=asked))
    found, (other, unknown) = of_experiment(rows, reference, plan, mixed=False)
    assert [(one.class_name, one.share) for one in found] == [("json*", 1 / 6), ("mine", 1 / 6)]
    assert other == "* json: measured with other prompts than those of qwen3-32b."
    assert unknown.startswith("Nothing is known of repetition, numeric, json and open-ended, so")


def test_wrong_input_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    for folder, shares in ((whole, ALL), (short, [0.9, 0.8, 0.7])):
        folder.mkdir()
        _file(folder, {"code": shares})
    wrong = {
        f"--acceptance {short}/acceptance.json": "code: acceptance is known up to k = 4, the arm drafts 7",
        "--acceptance nowhere.json": "nowhere.json",
        f"--acceptance {whole}/acceptance.json --arm qwen-vllm": "has no such arm that speculates",
        "--run nowhere": "nowhere",
        "--mix a=1": "--mix: weighs classes whose acceptance is known",
        f"--run nowhere --acceptance {whole}/acceptance.json": "--run and --acceptance: give one of them",
    }
    for words, message in wrong.items():
        assert main(["forecast", str(REFERENCE), *words.split()]) == 2
        error = capsys.readouterr().err
        assert (message in error, error.count("\n")) == (True, 1), error


def test_every_screen_has_the_same_plain_step_and_the_dollars_that_follow(say: Say) -> None:
    """The formula's range begins at 10.9 ms, and the published result has 45."""
    for verb in ("check", "forecast"):
        text = " ".join(say(verb, str(REFERENCE))[1].split())
        assert "A plain step takes 11 to 45 ms, because published results disagree." in text
        low, high = (NODE_USD / 2 / (4 / step_s * 3600) * 1e6 for step_s in (0.01085, 0.045))
        assert re.search(rf"qwen-vllm - - - {low:.1f} to {high:.1f} -", text), text
        assert "12.7" not in text
    assert "11 to 45 ms" in demonstrated_step(load(REFERENCE))


def test_what_cannot_be_paid_is_no_price(say: Say) -> None:
    """A part of a Capacity Block cannot be bought, and the reference names no zone of which a spot price is published."""
    code, out, _ = say("check", str(REFERENCE))
    assert code == 0
    assert "$310 for a Capacity Block of 8 hours in ap-south-2b (the run uses 2.6)" in " ".join(out.split())
    for words in (("check",), ("forecast",), ("run", "--dry-run")):
        text = " ".join(say(words[0], str(REFERENCE), *words[1:])[1].split())
        assert "94.08" not in text
        assert "us-east-2c" not in text
        assert "$310 for a Capacity Block of 8 hours in ap-south-2b" in text


Variation = Callable[[Any], Path]
Bill = Callable[..., dict[str, Any]]


@pytest.fixture
def bill(say: Say) -> Bill:
    """What `forecast --json` says of dollars."""

    def of(*words: object) -> dict[str, Any]:
        code, out, _ = say("forecast", *map(str, words), "--json")
        assert code == 0
        found: dict[str, Any] = json.loads(out)["cost"]
        return found

    return of


def test_cost_is_listed_by_component_each_with_its_date_and_source(say: Say, bill: Bill) -> None:
    found = bill(REFERENCE)
    total = sum(one["usd_per_hour"] for one in found["items"])
    assert found["running_usd_per_hour"] == pytest.approx(total, abs=0.001)
    assert all(one["as_of"] and one["source"] for one in found["items"])
    usage = [one["as_of"] for one in found["items"] if one["item"].startswith("usage")]
    assert usage == ["an estimate"] * 3
    assert 0.63 < found["idle_usd_per_hour"] < 0.70
    text = say("forecast")[1]
    assert "predicted" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_without_aws_shows_the_plan_of_a_new_run_and_the_reason(
    say: Say, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, out, err = say("run", str(REFERENCE), "--dry-run", "--json")
    plan = json.loads(out)
    assert code == 3
    assert (plan["asked_aws"], plan["resumes"], plan["to_compile"]) == (False, None, 2)
    assert plan["most_usd"] is None, "AWS publishes no on-demand price"
    assert plan["hours"] > plan["predicted_trn2_hours"] > 0
    assert "no AWS credentials on this machine" in err
    assert err.endswith("the plan assumes a new run that compiles every arm\n")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("windows", [7, [3, 5, 7]], ids=["one round", "three rounds"])
def test_every_verb_names_one_price_of_a_run(
    say: Say,
    bill: Bill,
    credentials: None,
    variation: Variation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    windows: int | list[int],
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = variation(lambda data: put("arms.1.speculation.num_speculative_tokens", windows)(data))
    shares = tmp_path / "shares.json"
    shares.write_text(json.dumps({"code": [0.5] * 7}))
    written = _rendered(load(file), tmp_path)
    arm = next(arm.name for arm in load(file).arms if arm.name.endswith(("sd-vllm", "k7")))
    checked = as_json(load(file))["first_run"]
    run = json.loads(say("run", str(file), "--dry-run", "--json", "--manifests", str(written))[1])
    forecast = json.loads(say("forecast", str(file), "--acceptance", str(shares), "--arm", arm, "--json")[1])
    assert run["predicted_trn2_hours"] == bill(file)["run"]["trn2_hours"] == checked["trn2_hours"]
    paid = [forecast["rental"]["usd"], bill(file)["ways_to_buy"][0]["usd"]]
    assert paid == pytest.approx([checked["usd"]] * 2, abs=0.01)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_run_that_could_not_end_well_is_refused_before_a_node_starts(
    more: tuple[str, ...], say: Say, variation: Variation, tmp_path: Path
) -> None:
    serving = variation(lambda data: data.update(serve={"arm": "qwen-sd-vllm"}))
    service = "qwen-sd-vllm is a service (serve), and a run would set its arm and nodes to 0; remove the"
    notes, reference = tmp_path / "notes.txt", str(ROOT / "experiments/qwen3-32b.yaml")
    notes.write_text("mine")
    no_folder = "is not a folder; choose another folder"
    for words, why in (
        ((str(serving),), service),
        ((reference, "--out", str(notes)), no_folder),
        ((reference, "--out", str(notes / "new/results")), no_folder),
    ):
        code, out, err = say("run", *words, *more)
        assert (code, out, why in err, len(err.splitlines())) == (2, "", True, 1), err
    assert notes.read_text() == "mine"


def test_in_a_region_that_is_not_in_the_table_the_price_is_unknown_and_ec2_is_asked(
    say: Say, variation: Variation, account: None
) -> None:
    zones = ["eu-north-1a", "eu-north-1b"]
    file = variation(lambda data: data["cluster"].update(region="eu-north-1", availability_zones=zones))
    experiment = load(file)
    unknown = as_json(experiment)["unknown_until_run"]
    assert (
        f"region eu-north-1: whether EC2 offers trn2.48xlarge there (./trnspec preflight {file} asks)"
        in unknown
    )
    note = "AWS publishes no on-demand price; this is the rate of a Capacity Block in ap-south-2"
    code, out, _ = say("forecast", str(file))
    assert (code, note in " ".join(out.split())) == (0, True)
    offered = where_offered(experiment, Aws("eu-north-1"))
    assert (offered.state, offered.why) == (State.FINDING, "trn2.48xlarge is not offered in eu-north-1")


def test_a_reservation_is_billed_otherwise_than_the_list_says(say: Say, variation: Variation) -> None:
    block = {"kind": "reservation", "reservation_id": "cr-0123456789abcdef0"}
    code, out, _ = say("forecast", str(variation(lambda data: data["cluster"].update(capacity=block))))
    billed = "cluster.capacity is a reservation: billed for all of its time, whether nodes run or not"
    assert (code, billed in out) == (0, True)


def test_the_quality_questions_are_predicted_as_they_are_asked(bill: Bill, variation: Variation) -> None:
    """From what the reviewed manifest asks of the arms at the same time, at 45 ms a token."""
    (check,) = [item for item in objects_of(REFERENCE) if item["metadata"]["name"] == "qwen-lmeval"]
    pod = check["spec"]["template"]["spec"]
    each: list[float] = []
    for container in pod["containers"]:
        given = dict(pairwise(container["args"]))
        at_once = json.loads(given["--model_args"])["num_concurrent"]
        tokens = json.loads(given["--gen_kwargs"])["max_gen_toks"]
        each.append(math.ceil(int(given["--limit"]) / at_once) * tokens * 0.045 / 3600)
    hours = max(each)
    asked = bill()["run"]
    silent = bill(variation(lambda data: data["benchmark"].pop("lm_eval")))["run"]
    (part,) = [one for one in asked["parts"] if one["step"] == "quality"]
    assert (len(each), part["hours"]) == (2, pytest.approx(hours))
    assert hours == pytest.approx(0.32)
    assert (
        "at most 512 tokens of 45 ms (the slowest published step of Qwen3-32B); likely 0.12 h with 200 tokens"
        in part["assumption"]
    )
    assert asked["trn2_hours"] - silent["trn2_hours"] == pytest.approx(hours, abs=0.01)


def test_published_results_and_steps_are_below_the_answer(say: Say) -> None:
    text = " ".join(say("forecast", "--all")[1].split())
    assert "qwen-sd-vllm: PREDICTED: the fitted formula gives a plain step of " in text
    assert "QUOTED: published results of decoding on Trainium2" in text
    quoted = json.loads(say("forecast", "--json")[1])["published"]
    assert quoted["origin"] == "quoted"
    assert (len(quoted["plain"]), len(quoted["drafted"])) == (len(PLAIN), len(DRAFTED))
    assert all(row["source"] for row in (*quoted["plain"], *quoted["drafted"]))


def test_what_is_billed_is_said_where_nothing_is_published_of_a_step(say: Say) -> None:
    file = str(ROOT / "experiments" / "qwen3-32b-today.yaml")
    code, out, err = say("forecast", file)
    assert (code, "A first run takes " in out, "give --step-times" in err) == (2, True, True)
    assert json.loads(say("forecast", file, "--json")[1]).keys() >= {"cost", "published", "problems"}
    assert say("forecast", file, "--arm", "qwen-eagle3")[1] == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"prompts": [{"id": "a", "class": "raw", "prompt": "Once"}]},
            "asked completions, qwen3-32b asks chat",
        ),
        ({"extra_body": {}}, "asked with thinking, qwen3-32b has benchmark.thinking false"),
    ],
)
def test_a_run_that_asked_otherwise_is_no_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    chat = [{"id": "a", "class": "chat", "messages": [{"role": "user", "content": "One?"}]}]
    store(raw_run(**{"prompts": chat, **changes}), tmp_path)
    assert main(["forecast", str(REFERENCE), "--run", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
