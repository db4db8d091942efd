"""Runs made by hand, as a report meets them: with speculation, failures, several loads, or nothing at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.benchmark.records import WALL, answered, emulated, failed, raw_run
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord

HOSTILE = '<script>alert("x")</script><img src=https://evil.example/p.png onerror=alert(1)>'
PLAIN = {"name": "qwen-vllm", "url": "http://plain/v1", "usd_per_hour": 17.88}
_SEVEN = {"speculative_tokens": 7, "max_tokens_per_step": 7}
FUSED = {"name": "qwen-sd-vllm", "url": "http://fused/v1", **_SEVEN, "usd_per_hour": 17.88}
SMALL = {"name": "qwen-sd-06b", "url": "http://small/v1", **_SEVEN}
CROWDED = {**FUSED, "name": "qwen-sd-crowded"}
"""Slower with each request beside it."""
ACCEPTED = {"repetition": 0.97, "json": 0.85, "code": 0.8, "open-ended": 0.45}
"""How often a draft is right, by class."""
CLASSES = ("repetition", "numeric", "json", "code", "open-ended")
LONG = "a-name-that-somebody-made-as-long-as-names-may-be"


def prompts(classes: tuple[str, ...], each: int = 8) -> list[dict[str, Any]]:
    return [
        {"id": f"{class_}-{i}", "class": class_, "prompt": f"Question {i} {HOSTILE}"}
        for class_ in classes
        for i in range(each)
    ]


def timed(
    arm: dict[str, Any], class_: str, index: int, load: dict[str, Any], at_s: float, noise: random.Random
) -> RequestRecord:
    """An answer of 60 tokens whose steps yield what drafts of `class_` would."""
    right = ACCEPTED.get(class_, 0.6) * (0.7 if arm is SMALL else 1.0)
    drafted = arm.get("speculative_tokens", 0)
    at_once = (load["concurrency"] or 4) / 4
    slower = max(0.6, at_once**1.5) if arm["name"] == CROWDED["name"] else 0.92 + 0.08 * at_once
    step_s = (0.094 if arm is FUSED else 0.045 + 0.0057 * drafted) * slower * noise.gauss(1, 0.02)
    tokens, times = [1], [0.12 * noise.gauss(1, 0.1)]
    while sum(tokens) < 60:
        accepted = next((i for i in range(drafted) if noise.random() > right), drafted)
        tokens.append(min(accepted + 1, max(drafted, 1), 60 - sum(tokens)))
        times.append(times[-1] + step_s * noise.gauss(1, 0.03))
    return answered(
        arm["name"],
        chunk_s=tuple(times),
        chunk_tokens=tuple(tokens),
        class_=class_,
        prompt_id=f"{class_}-{index % 8}",
        pair_id=f"{class_}/{load}/{index:04d}",
        started_unix_s=WALL + at_s,
        text=f"answer {index} & more {HOSTILE}" + (" other" if arm is SMALL and index % 3 == 0 else " end"),
        **load,
    )


def run_of(
    arms: tuple[dict[str, Any], ...] = (PLAIN, FUSED),
    classes: tuple[str, ...] = tuple(ACCEPTED),
    *,
    loads: tuple[dict[str, Any], ...] = ({"concurrency": 4, "rate_per_s": None},),
    requests: int = 8,
    fails: float = 0.0,
    **plan: Any,
) -> RawRun:
    """A whole run; `fails` is the share of failures in the last arm."""
    noise = random.Random(7)
    records = list(_records(arms, classes, loads, requests, noise))
    last = arms[-1]["name"]
    records = [_failed(r) if r.arm == last and noise.random() < fails else r for r in records]
    content: dict[str, Any] = {
        "model": "Qwen/Qwen3-32B",
        "baseline": arms[0]["name"],
        "arms": list(arms),
        "prompts": prompts(classes),
        "requests": requests,
        "max_tokens": 60,
        "concurrency": [load["concurrency"] for load in loads if load["concurrency"]] or [4],
        "rate": [load["rate_per_s"] for load in loads if load["rate_per_s"]],
    }
    return raw_run(*records, **(content | plan))


def ladder(
    classes: tuple[str, ...] = tuple(ACCEPTED),
    *,
    arms: tuple[dict[str, Any], ...] = (PLAIN, CROWDED),
    **plan: Any,
) -> RawRun:
    """A run with loads from 1 to 8 requests at once; its treatment pays up to 4."""
    return run_of(arms, classes, loads=at_once(1, 8, 2, 4), mixed=True, **plan)


def swept(windows: tuple[int, ...], classes: tuple[str, ...] = tuple(ACCEPTED)) -> RawRun:
    """A run with an arm for each window of one draft."""
    drafted = ({"speculative_tokens": k, "max_tokens_per_step": k} for k in windows)
    names = ({"name": f"qwen-sd-k{k}", "url": f"http://k{k}/v1"} for k in windows)
    arms = [FUSED | name | drafts for name, drafts in zip(names, drafted, strict=True)]
    return run_of((PLAIN, *arms), classes)


def at_once(*levels: int) -> tuple[dict[str, Any], ...]:
    """Loads of so many requests."""
    return tuple({"concurrency": level, "rate_per_s": None} for level in levels)


def all_runs() -> dict[str, RawRun]:
    """Runs by what is odd about them."""
    slo = {"tpot_s": 0.03}
    ends = ({"name": "a", "url": "http://a/v1"}, {"name": "b", "url": "http://b/v1"})
    long_arms = ({**PLAIN, "name": LONG}, {**FUSED, "name": f"{LONG}-drafting"})
    failing = run_of((PLAIN, FUSED, SMALL), CLASSES, fails=0.4, slo=slo)
    return {
        "reference": emulated(run_of(classes=CLASSES)),
        "sweep": swept((2, 3, 4, 5, 6, 7, 8), CLASSES),
        "failures": replace(failing, requests=failing.requests[: len(failing.requests) * 4 // 5]),
        "two endpoints": run_of(ends, ("json", "code", "open-ended")),
        "loads": run_of(classes=CLASSES, loads=(*at_once(1), {"concurrency": None, "rate_per_s": 2.5})),
        "long names": run_of(long_arms, tuple(f"{LONG}-{i}" for i in range(8))),
        "ladder": ladder(CLASSES, slo=slo),
        "many requests": run_of(classes=("json",), requests=260),
        "merged chunks": merged(run_of(classes=("repetition",))),
        "one arm": run_of((PLAIN,), ("json",)),
        "nothing answered": run_of(classes=("json",), fails=1.0),
        "nothing asked": raw_run(),
    }


def merged(raw: RawRun) -> RawRun:
    """As a busy client sees it: two chunks of each answer that drafts come as one."""
    requests = []
    for one in raw.requests:
        if one.arm != PLAIN["name"] and one.chunk_tokens:
            first, *rest = one.chunk_tokens
            tokens = (first, *map(sum, zip(rest[::2], rest[1::2], strict=False)))
            times = (one.chunk_s[0], *one.chunk_s[2::2])
            ends: dict[str, Any] = {"completion_tokens": sum(tokens), "e2e_s": times[-1]}
            one = replace(one, chunk_s=times, chunk_tokens=tokens, **ends)
        requests.append(one)
    return replace(raw, requests=tuple(requests))


def _records(
    arms: tuple[dict[str, Any], ...],
    classes: tuple[str, ...],
    loads: tuple[dict[str, Any], ...],
    requests: int,
    noise: random.Random,
) -> Iterator[RequestRecord]:
    at_s = 0.0
    for load in loads:
        for class_ in classes:
            for begin in range(0, requests, 4):
                for arm in arms if begin % 8 else reversed(arms):
                    for index in range(begin, min(begin + 4, requests)):
                        yield timed(arm, class_, index, load, at_s + 0.1 * (index - begin), noise)
                    at_s += 3.2


def _failed(record: RequestRecord) -> RequestRecord:
    names = ("http_500", "timeout", "reset")
    same = ("class_", "concurrency", "rate_per_s", "prompt_id", "pair_id", "started_unix_s")
    kept = {name: getattr(record, name) for name in same}
    error = names[int(record.pair_id[-4:]) % len(names)]
    return replace(failed(record.arm, error=error, **kept), message=f"server said {HOSTILE}\nand more")
