"""From decisions to routes: what a run supports, what it speaks against, and what the file then says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmark.analyse.decision import decide
from benchmark.analyse.summary import summarise
from core.findings import Refusal
from experiment import load
from operations.__main__ import main
from operations.policy import break_evens, proposed, with_routes
from tests.benchmark.records import recorded_run
from tests.conftest import REFERENCE

PLAIN, DRAFTED, SMALL = "qwen-vllm", "qwen-sd-vllm", "qwen-sd-small"
Speeds = Mapping[tuple[str, str], Mapping[int, float]]


def summary(
    speeds: Speeds, *, dearer: tuple[str, ...] = (), crossing: float | None = None, **run: Any
) -> dict[str, Any]:
    """A summary's part that a policy reads: speed-ups by class and arm, at each load."""
    loads = sorted({load for by_load in speeds.values() for load in by_load})

    def gain(class_: str, arm: str, ratio: float) -> dict[str, Any]:
        verdict = "faster" if ratio > 1.05 else "slower" if ratio < 0.95 else "no clear difference"
        usd = {"usd_before": 10.0, "usd_after": 12.0 if arm in dearer else 10.0 / ratio}
        return {
            "class": class_,
            "arm": arm,
            "verdict": verdict,
            "ratio": ratio,
            "low": ratio - 0.04,
            "high": ratio + 0.04,
            **usd,
        }

    edge = {"found": "crossing", "class": None, "by": "concurrency", "treatment": DRAFTED, "low": crossing}
    return {
        "run": {
            "id": "R",
            "baseline": PLAIN,
            "provenance": "measured",
            "complete": True,
            "arms": [
                {"name": name, "speculative_tokens": 0 if name == PLAIN else 7}
                for name in (PLAIN, DRAFTED, SMALL)
            ],
            **run,
        },
        "sense": None,
        "explanations": [
            {
                "treatment": arm,
                "class": class_,
                "concurrency": at,
                "break_even_tokens_per_step": 2.0 + at / 10,
            }
            for (class_, arm), by_load in speeds.items()
            for at in by_load
        ],
        "crossovers": [edge] if crossing else [],
        "decision": {
            "loads": [
                {
                    "load": {"concurrency": at},
                    "by_window": [
                        gain(*key, by_load[at]) for key, by_load in speeds.items() if at in by_load
                    ],
                }
                for at in loads
            ]
        },
    }


MIXED: Speeds = {
    ("json", DRAFTED): {1: 2.7, 8: 1.6, 16: 0.8},
    ("code", DRAFTED): {1: 2.0, 8: 1.3, 16: 0.7},
    ("chat", DRAFTED): {1: 0.9, 8: 0.7, 16: 0.5},
}


def test_drafting_serves_the_classes_that_it_pays_for_up_to_the_load_at_which_it_was_seen_to_pay() -> None:
    policy = proposed(summary(MIXED))
    assert policy.routes == {"json": DRAFTED, "code": DRAFTED, "*": PLAIN}
    assert policy.most_at_once == {DRAFTED: 8}
    assert policy.reasons["json"] == "1.60 [1.56, 1.64] times as fast at 8 at once"
    assert policy.reasons["*"] == "the baseline; no arm pays for chat"
    assert proposed(summary(MIXED, crossing=5.7)).most_at_once == {DRAFTED: 5}, (
        "the lower end of a crossover counts too"
    )


def test_the_break_even_is_that_of_the_routed_classes_at_the_largest_load_within_the_limit() -> None:
    run = summary(MIXED)
    assert break_evens(proposed(run), run) == {DRAFTED: 2.8}
    assert break_evens(with_routes(proposed(run), run, {}, {DRAFTED: 2}), run) == {DRAFTED: 2.1}


def test_one_arm_is_served_where_it_wins_everywhere_and_the_baseline_where_nothing_pays() -> None:
    wins = proposed(summary({("json", DRAFTED): {1: 2.0, 8: 1.5}, ("chat", DRAFTED): {1: 1.4, 8: 1.2}}))
    assert (wins.routes, wins.most_at_once) == ({"*": DRAFTED}, {})
    assert "the least chat: 1.20" in wins.reasons["*"]
    assert proposed(summary({("json", DRAFTED): {4: 0.8}})).routes == {"*": PLAIN}
    assert proposed(summary({("json", DRAFTED): {4: 2.0}}, dearer=(DRAFTED,))).routes == {"*": PLAIN}, (
        "faster but dearer"
    )


def test_each_class_gets_the_arm_that_pays_furthest() -> None:
    policy = proposed(
        summary(
            {
                ("json", DRAFTED): {1: 2.0, 8: 1.5},
                ("json", SMALL): {1: 2.5, 8: 0.9},
                ("code", SMALL): {1: 1.5, 8: 0.9},
                ("code", DRAFTED): {1: 0.9, 8: 0.9},
                ("chat", DRAFTED): {1: 1.0, 8: 0.9},
            }
        )
    )
    assert policy.routes == {"json": DRAFTED, "code": SMALL, "*": PLAIN}
    assert policy.most_at_once == {DRAFTED: 8, SMALL: 2}


@pytest.mark.parametrize(
    ("routes", "limits", "against"),
    [
        ({"chat": DRAFTED}, {}, {"chat": "chat is slower, 0.90 [0.86, 0.94] times as fast at 1 at once"}),
        ({"poems": DRAFTED}, {}, {"poems": "poems was not measured"}),
        (
            {"*": DRAFTED},
            {},
            {
                "*": "json is slower, 0.80 [0.76, 0.84] times as fast at 16 at once; code is slower, 0.70 [0.66, 0.74] times as fast "
                "at 16 at once; chat is slower, 0.90 [0.86, 0.94] times as fast at 1 at once"
            },
        ),
        ({"json": PLAIN}, {}, {}),
        ({}, {DRAFTED: 8}, {}),
        ({}, {DRAFTED: 12}, {DRAFTED: "was seen to pay up to 8 at once"}),
        (
            {"json": PLAIN, "code": PLAIN, "*": DRAFTED},
            {},
            {"*": "chat is slower, 0.90 [0.86, 0.94] times as fast at 1 at once"},
        ),
    ],
)
def test_what_is_asked_for_instead_is_held_against_the_run(
    routes: dict[str, str], limits: dict[str, int], against: dict[str, str]
) -> None:
    run = summary(MIXED)
    policy = with_routes(proposed(run), run, routes, limits)
    assert policy.against == against
    assert set(policy.most_at_once) <= set(policy.routes.values()) - {policy.routes["*"]}


def test_a_default_is_judged_at_every_load_and_a_route_asked_for_has_the_limit_of_its_arm() -> None:
    run = summary(
        {("json", DRAFTED): {1: 2.0, 8: 1.5}, ("json", SMALL): {1: 1.5, 8: 0.9}, ("chat", SMALL): {1: 0.9}}
    )
    everything = with_routes(proposed(run), run, {"*": DRAFTED, "chat": SMALL}, {})
    assert everything.against["chat"].startswith("chat is slower")
    assert "*" not in everything.against
    assert (
        "json is slower, 0.90"
        in with_routes(proposed(run), run, {"json": SMALL, "*": SMALL}, {}).against["*"]
    )
    small = with_routes(proposed(run), run, {"json": SMALL}, {})
    assert (small.against, small.most_at_once) == ({}, {SMALL: 2}), "slower at 8"


def test_of_several_baselines_only_the_one_that_would_serve_counts_and_of_rates_all_must_pay() -> None:
    run = summary({("json", DRAFTED): {1: 2.0}, ("json", SMALL): {1: 3.0}})
    for gain in run["decision"]["loads"][0]["by_window"]:
        gain["baseline"] = PLAIN if gain["arm"] == DRAFTED else f"{PLAIN}-b8"
    assert proposed(run).routes == {"*": DRAFTED}
    for second, routes in ((1.5, {"*": DRAFTED}), (0.8, {"*": PLAIN})):
        run = summary({("json", DRAFTED): {1: 2.0, 8: second}})
        for at in run["decision"]["loads"]:
            at["load"] = {"concurrency": None, "rate_per_s": at["load"]["concurrency"] / 2}
        run["decision"]["loads"].reverse()
        assert (proposed(run).routes, proposed(run).most_at_once) == (routes, {})
    without = {key: value for key, value in summary(MIXED).items() if key != "decision"}
    with pytest.raises(Refusal, match="has no decision; make it again"):
        proposed(without)


def test_a_run_of_another_experiment_is_no_evidence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = json.loads((folder / "run" / "summary.json").read_text())
    run["run"]["experiment"] = "llama"
    (folder / "run" / "summary.json").write_text(json.dumps(run), encoding="utf-8")
    words = ("--from", str(folder / "run"))
    assert _promote(folder, *words) == 1
    assert "run R is of experiment llama" in capsys.readouterr().err
    assert _promote(folder, *words, "--against-evidence") == 0
    assert "at 8 at once, run R of llama" in (folder / "mine.yaml").read_text()


def test_a_real_run_without_a_clear_difference_supports_the_baseline_alone(tmp_path: Path) -> None:
    recorded = summarise(recorded_run("e3k1-list", tmp_path))
    recorded = {**recorded, "decision": decide(recorded).as_json()}
    assert proposed(recorded).routes == {"*": "plain"}
    with pytest.raises(Refusal, match="compares no arms"):
        proposed(summary({}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    named = {"repetition": "json", "open-ended": "chat"}
    speeds = {(class_, arm): MIXED[name, arm] for class_, name in named.items() for arm in [DRAFTED]}
    (run / "summary.json").write_text(json.dumps(summary(speeds)), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(REFERENCE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "prompts").symlink_to(REFERENCE.parent / "prompts")
    return tmp_path


def _promote(folder: Path, *words: str) -> int:
    return main(["promote", str(folder / "mine.yaml"), *words, "--manifests", str(folder / "manifests")])


def test_the_file_says_what_each_route_rests_on_and_one_command_leads_back_to_one_arm(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _promote(folder, "--from", str(folder / "run")) == 0
    out, text = capsys.readouterr().out, (folder / "mine.yaml").read_text()
    assert "repetition: qwen-sd-vllm  # 1.60 [1.56, 1.64] times as fast at 8 at once, run R" in text
    assert "qwen-sd-vllm gets at most 8 requests at once" in out
    serve = load(folder / "mine.yaml").serve
    assert serve is not None
    assert serve.break_even == {DRAFTED: 2.8}
    assert (serve.arms, serve.most_at_once) == ((PLAIN, DRAFTED), {DRAFTED: 8})
    assert (folder / "manifests" / "qwen3-32b" / "58-gateway.yaml").exists()
    assert _promote(folder, DRAFTED) == 0
    assert yaml.safe_load((folder / "mine.yaml").read_text())["serve"] == {"arm": DRAFTED}
    assert not (folder / "manifests" / "qwen3-32b" / "58-gateway.yaml").exists()


def test_a_route_against_the_evidence_is_written_only_on_demand_and_marked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "mine.yaml").read_text()
    words = ("--from", str(folder / "run"), "--route", "open-ended=qwen-sd-vllm")
    assert _promote(folder, *words) == 1
    assert (
        "open-ended is slower, 0.90 [0.86, 0.94] times as fast at 1 at once); take the route back"
        in capsys.readouterr().err
    )
    assert (folder / "mine.yaml").read_text() == before
    assert _promote(folder, *words, "--against-evidence") == 0
    assert "open-ended: qwen-sd-vllm # AGAINST THE EVIDENCE of run R" in (folder / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one of ARM and --from RUN"),
        (("--from", "nowhere"), "nowhere/summary.json: is not the summary of a run"),
        ((DRAFTED, "--route", "json=qwen-vllm"), "need --from RUN"),
        (("--from", "nowhere", "--route", "json"), "is not written like json=qwen-sd-vllm"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert _promote(folder, *words) == 2
    assert said in capsys.readouterr().err
