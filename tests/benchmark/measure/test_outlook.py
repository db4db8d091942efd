from __future__ import annotations

from typing import Any

import pytest

from tests.benchmark.conftest import Captured, Run, plan_content
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.records import answered, failed
from trnspec.benchmark.measure.progress import limits, size
from trnspec.benchmark.plan import from_dict

EIGHT = [{"id": str(n), "class": "chat", "prompt": "?"} for n in range(8)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"concurrency": [1, 4]},
            "2 arms x 2 classes x 16 requests or more, at 1 and 4 concurrent requests; answers of at most 13 tokens; about",
        ),
        (
            {"mixed": True, "rate": [2.5], "ignore_eos": True},
            "2 arms x 2 classes together x 8 requests or more, at 2.5 requests per second; answers of 13 tokens; about",
        ),
        ({"cell_minutes": 6}, "requests with ramps and warm-up, 15 minutes at most"),
    ],
)
def test_the_size_of_a_run_is_said_before_the_load(changes: dict[str, Any], said: str) -> None:
    assert said in size(from_dict(plan_content(**changes)))


@pytest.mark.parametrize(
    ("answer", "counts", "said"),
    [
        (
            answered("spec", completion_tokens=None, chunk_tokens=None),
            True,
            "how many tokens an answer has (spec: the server sends no usage)",
        ),
        (
            answered("spec", chunk_tokens=None, completion_tokens=3),
            True,
            "how many tokens a chunk has (spec: the server sends no usage per chunk)",
        ),
        (answered("spec"), False, "how many drafts are accepted (spec: no counters at /metrics)"),
        (answered("spec"), True, ""),
        (failed("spec"), True, ""),
    ],
)
def test_what_the_warm_up_does_not_show_cannot_be_said_later(answer: Any, counts: bool, said: str) -> None:
    plan = from_dict(plan_content(prompts=EIGHT))
    plan = plan.model_copy(
        update={"arms": tuple(arm.model_copy(update={"usd_per_hour": 1}) for arm in plan.arms)}
    )
    plain = answered("steady", completion_tokens=None, chunk_tokens=None)
    warmups, known = {"steady": [plain], "spec": [answer]}, {"steady": False, "spec": counts}
    assert limits(plan, warmups, known) == said


def test_what_a_run_cannot_say_is_one_line_after_its_warm_up(
    run: Run, endpoint: Endpoint, capsys: Captured
) -> None:
    assert run(only="raw") == 0
    told = capsys.readouterr().err.splitlines()
    (at,) = [at for at, line in enumerate(told) if line.startswith("this run will not be able to say")]
    assert told[at] == (
        "this run will not be able to say how many drafts are accepted "
        "(spec: no counters at /metrics); what a token costs (no arm has a price: --usd-per-hour)"
    )
    assert any(line.startswith("[2/14] warm-up") for line in told[:at])
    assert not any(line.startswith("[3/14]") for line in told[:at])
