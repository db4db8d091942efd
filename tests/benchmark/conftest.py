"""Endpoints, plans and records that the benchmark's tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.endpoint import MODEL, Endpoint, Timing
from trnspec.benchmark.__main__ import main

STEADY = Timing(first_s=0.006, step_s=0.005)
SPEC = Timing(first_s=0.006, step_s=0.005, sizes=(2, 4))

WritePlan = Callable[..., Path]
Run = Callable[..., int]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint({"steady": STEADY, "spec": SPEC}) as server:
        yield server


def plan_content(**changes: Any) -> dict[str, Any]:
    """A small plan of two arms and two classes of eight prompts, or `only` one of them."""
    only = changes.pop("only", "")
    prompts: list[dict[str, Any]] = [
        {"id": f"chat-{i}", "class": "chat", "messages": [{"role": "user", "content": f"Question {i}?"}]}
        for i in range(8)
    ]
    prompts += [{"id": f"raw-{i}", "class": "raw", "prompt": f"Beginning {i}"} for i in range(8)]
    prompts = [prompt for prompt in prompts if only in ("", prompt["class"])]
    content = {
        "schema": 1,
        "experiment": "qwen3-32b",
        "model": MODEL,
        "baseline": "steady",
        "arms": [_arm("steady", "v1", 0, 1), _arm("spec", "spec/v1", 4, 4)],
        "concurrency": [2],
        "requests": 8,
        "warmup": 1,
        "seed": 1,
        "max_tokens": 13,
        "temperature": 0.0,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
        "prompts": prompts,
    }
    return content | changes


def _arm(name: str, path: str, drafts: int, per_step: int) -> dict[str, Any]:
    known = {"speculative_tokens": drafts, "max_tokens_per_step": per_step}
    return {"name": name, "url": f"http://127.0.0.1:9/{path}", **known}


@pytest.fixture
def write_plan(tmp_path: Path, endpoint: Endpoint) -> WritePlan:
    """Writes a plan whose arms live on the test's endpoint."""

    def write(**changes: Any) -> Path:
        content = plan_content(**changes)
        for arm in content["arms"]:
            arm["url"] = endpoint.url(arm["name"])
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(content))
        return path

    return write


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def reported(folder: Path, *options: str) -> bool:
    """Whether `report` made its report, be it one that withholds everything, as of a client on a busy machine."""
    return main(["report", str(folder), *options]) in {0, 1}


@pytest.fixture
def run(write_plan: WritePlan, out: Path) -> Run:
    """`run` of the small plan into `out`, with these options and changes of the plan. The endpoint answers no questions."""

    def run(options: str = "", **changes: Any) -> int:
        words = [
            "run",
            "--plan",
            str(write_plan(**changes)),
            "--out",
            str(out),
            "--questions",
            "none",
            "--exit-zero",
        ]
        return main([*words, *options.split()])

    return run
