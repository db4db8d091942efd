"""gsm8k in a run: all arms at the same time, after the answer, and not again while nothing differs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from tests.operations.driver import Driver
from trnspec.experiment.naming import LMEVAL_NAME


def _asked(driver: Driver) -> list[dict[str, Any]]:
    return driver.jobs(LMEVAL_NAME)


def _again(driver: Driver) -> None:
    driver.said.clear()
    driver.clock.time += timedelta(days=1)
    driver.run()


def test_both_arms_are_asked_by_one_pod_at_the_same_time(driver: Driver) -> None:
    driver.run()
    (job,) = _asked(driver)
    pod = job["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["check-qwen-vllm", "check-qwen-sd-vllm"]


def test_the_report_comes_before_the_questions_and_again_with_their_answers(driver: Driver) -> None:
    reported: list[tuple[int, bool]] = []

    def look() -> None:
        if any(not job.get("status") for job in _asked(driver)):
            reported.append((len(driver.reports), (driver.out / "lmeval").exists()))

    driver.world.on_tick.append(look)
    driver.world.failing = {LMEVAL_NAME: "no answer"}
    assert "no answer" in driver.line()
    assert set(reported) == {(1, False)}
    assert (driver.out / "summary.json").exists(), "a run that ends here has its answer"
    driver.world.failing = {}
    driver.run()
    assert sorted(path.name for path in (driver.out / "lmeval").iterdir()) == [
        *("questions.json", "qwen-sd-vllm", "qwen-vllm"),
    ]
    assert driver.reports == [driver.out] * 3


def test_answers_to_the_same_questions_are_taken_and_asked_again_where_something_differs(
    driver: Driver,
) -> None:
    driver.run()
    (first,) = _asked(driver)
    where = f"runs/lmeval-{first['metadata']['name']}/"
    _again(driver)
    taken = [line.split(":")[0].strip() for line in driver.said if f"uses the answers in {where}" in line]
    assert (len(_asked(driver)), taken) == (1, ["qwen-vllm", "qwen-sd-vllm"])
    assert len(driver.reports) == 3, "there is nothing to wait for, so the second run reports once"
    assert len([*(driver.out / "lmeval").rglob("samples_*")]) == 2

    server = driver.world.api.objects["deployments", driver.world.experiment.name, "qwen-sd-vllm"]
    server["spec"]["template"] = {"spec": {"containers": [{"name": "vllm", "command": ["--other"]}]}}
    _again(driver)
    (_, second) = _asked(driver)
    asked = [one["name"] for one in second["spec"]["template"]["spec"]["containers"]]
    assert asked == ["check-qwen-sd-vllm"], "the server of one arm differs"
    driver.redeploy()
    _again(driver)
    assert len(_asked(driver)) == 3, "other questions, or another client"


def test_a_note_that_names_no_answers_is_not_believed(driver: Driver) -> None:
    driver.run()
    notes = [key for key in driver.world.stored("results") if "/lmeval-kept/" in key]
    assert len(notes) == 2
    for key, answers in zip(notes, ("runs/lmeval-gone/", 7), strict=True):
        driver.world.store("results", key, {"answers": answers})
    _again(driver)
    assert len(_asked(driver)) == 2


def test_a_job_that_ends_without_the_answers_of_an_arm_ends_the_run(driver: Driver) -> None:
    store = driver.world.store

    def lost(purpose: str, key: str, content: object) -> None:
        if "/qwen-sd-vllm/m/samples" not in key:
            store(purpose, key, content)

    driver.world.store = lost  # pyrefly: ignore[method-assign]  # of this world alone
    line = driver.line()
    assert (
        "has no answers of qwen-sd-vllm; remove the Job (./trnspec kubectl experiments/qwen3-32b.yaml delete job qwen-lmeval-"
        in line
    )
    kept = [json.loads(body) for key, body in driver.world.stored("results").items() if "-kept/" in key]
    assert len(kept) == 1, "those of the other arm are kept"
