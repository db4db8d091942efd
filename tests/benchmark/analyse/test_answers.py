"""What runs of all kinds say to do: `data/answers.txt` has the question, the advice and the sentence of each.

`python -m tests.benchmark.analyse.test_answers` writes them again; what changed is read in the diff.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.decision import decide
from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from tests.benchmark.analyse.test_decision import EQUAL_PRICES, run_of
from tests.benchmark.analyse.test_several_baselines import BETTER, PRICES, two_batches
from tests.benchmark.records import block, emulated, failed
from tests.benchmark.show.runs import PLAIN, searched

TEXTS = Path(__file__).parent / "data" / "answers.txt"
DEARER, CHEAPER = ({"plain": 10.0, "spec-k7": usd} for usd in (30.0, 3.0))
ARMS = ("qwen-vllm", "qwen-sd-crowded")


def one(gains: dict[str, float], **options: Any) -> RawRun:
    return run_of({"spec-k7": gains}, **options)


def pair(of_a: float, of_b: float) -> dict[str, float]:
    return {"a": of_a, "b": of_b}


def kept(raw: RawRun, *, class_b: int = 99, load: int | None = None) -> RawRun:
    """Without class b's prompts from there on, or without the other loads."""
    able = (
        r
        for r in raw.requests
        if load in (None, r.concurrency)
        and (r.class_ != "b" or int(r.prompt_id.rpartition("-")[2]) < class_b)
    )
    return replace(raw, requests=tuple(able))


def lost(raw: RawRun, arm: str) -> RawRun:
    """Without an answer of that arm."""
    names = ("pair_id", "prompt_id", "class_", "concurrency", "rate_per_s", "round", "started_unix_s")
    places = [{name: getattr(r, name) for name in names} for r in raw.requests]
    records = [failed(arm, **at) if r.arm == arm else r for r, at in zip(raw.requests, places, strict=True)]
    return replace(raw, requests=tuple(records))


def blocked(times: int, lag_s: float = 0.0) -> RawRun:
    """A search with so many blocks of each arm at 2 requests at once."""
    blocks = [block(arm=arm, class_="json", concurrency=2, client_lag_s=lag_s) for arm in ARMS] * times
    return replace(searched(("json",), slo={"tpot_s": 0.03}), blocks=tuple(blocks))


def runs() -> dict[str, RawRun]:
    half, both = pair(2.0, 4.0), pair(2.0, 2.0)
    sweep = {"spec-k3": pair(1.5, 1.2), "spec-k5": pair(2.0, 1.21), "spec-k7": pair(2.5, 0.8)}
    same = ({**PLAIN, "name": "a"}, {**PLAIN, "name": "b"})
    return {
        "faster in all classes": one(pair(2.0, 3.0), usd=EQUAL_PRICES),
        "equal in one class": one(pair(2.0, 1.0)),
        "slower in one class": one(pair(2.0, 0.7)),
        "faster in one class": one(pair(1.3, 0.5)),
        "slower": one(pair(0.8, 0.6)),
        "equal": one(pair(1.0, 1.0)),
        "too noisy to tell": one(pair(1.1, 1.1), spread=0.5),
        "too few prompts": one(both, prompts=5),
        "too few prompts in one class": kept(one(half), class_b=5),
        "faster and dearer": one({"a": 1.5}, usd=DEARER),
        "slower and cheaper": one({"a": 0.8}, usd=CHEAPER),
        "faster, and a fifth of its requests failed": one(both, prompts=10, fails=2),
        "emulated": emulated(one({"a": 2.0})),
        "emulated and incomplete": kept(emulated(one(both)), class_b=7),
        "acceptance made up in one class": emulated(one(both, usd=EQUAL_PRICES), made_up={"spec-k7": ["a"]}),
        "acceptance made up": emulated(one(both, usd=EQUAL_PRICES), made_up={"spec-k7": ["a", "b"]}),
        "a sweep": run_of(sweep, spread=0.05),
        "a sweep of equal arms": run_of({name: {"a": 2.0} for name in sweep}, spread=0.05),
        "another arm pays where the best does not": run_of({"spec-k2": pair(1.2, 1.2), "spec-k7": pair(3.0, 0.8)}),
        "the best pays in one class alone": run_of({"spec-k2": pair(1.0, 1.0), "spec-k7": pair(1.5, 0.6)}),
        "another arm without a window": run_of({"spec-k3": {"a": 2.0}, "other": {"a": 2.0}}),
        "one arm without a window": run_of({"other": {"a": 2.0}}),
        "batches: its own baseline is the best": two_batches(BETTER),
        "batches: another baseline is the best": two_batches(BETTER | {"spec-k7": 3.0}),
        "batches: no drafting pays": two_batches(BETTER | {"plain-b8": 4.0}),
        "batches: the faster baseline is dearer": two_batches(BETTER, usd=PRICES | {"plain-b8": 40.0}),
        "batches: the faster treatment is dearer": two_batches(BETTER | {"spec-k7": 4.0}, usd=PRICES | {"spec-k7": 40.0}),
        "batches without prices": two_batches(BETTER, usd={}),
        "a search that ended after one load": kept(searched(("json",)), load=1),
        "a search of an arm with itself": searched(("json",), arms=same),
        "a search in which an arm answered nothing": lost(searched(("json",)), "qwen-vllm"),
    }  # fmt: skip


def told(raw: RawRun) -> str:
    decision = decide(summarise(raw))
    return f"{decision.question}\n{decision.at.advice}: {decision.sentence}\n"


def test_each_run_says_what_is_written_down() -> None:
    sections = (one.strip().split("\n", 1) for one in TEXTS.read_text(encoding="utf-8").split("# ")[1:])
    assert {name: told(raw) for name, raw in runs().items()} == {name: f"{text}\n" for name, text in sections}


@pytest.mark.parametrize(
    ("times", "lag_s", "advice", "why"),
    [
        (2, 0.0, "use", "use qwen-sd-crowded"),
        (1, 0.0, "unclear", "each arm was loaded there once for a class, and a pause of the machine would count"),
        (2, 0.2, "unclear", "nothing is recommended from this load alone, because the client was late there"),
    ],
)  # fmt: skip
def test_one_block_of_each_arm_or_a_late_client_is_not_enough_for_advice(
    times: int, lag_s: float, advice: str, why: str
) -> None:
    decision = decide(summarise(blocked(times, lag_s)))
    (at,) = (one for one in decision.loads if one.load.concurrency == 2)
    assert at.advice == advice
    assert why in at.sentence
    assert decision.sentence.startswith("qwen-sd-crowded pays up to "), "which all cells together tell"


if __name__ == "__main__":
    TEXTS.write_text("\n".join(f"# {name}\n{told(raw)}" for name, raw in runs().items()), encoding="utf-8")
