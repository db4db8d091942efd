from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import SPEC, STEADY, Captured, Run, reported
from tests.benchmark.endpoint import Endpoint, Seen
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.cell_size import SETS, SETS_REPEATED
from trnspec.benchmark.measure.journal import Journal


def lose(out: Path, requests: int) -> None:
    """Take the journal back to before its last `requests` measured requests, half a line of the first kept."""
    raw = out / "requests.jsonl"
    whole = raw.read_bytes().splitlines(keepends=True)
    at = [i for i, line in enumerate(whole) if json.loads(line).get("phase") == "measured"][-requests]
    raw.write_bytes(b"".join(whole[:at]) + whole[at][:40])


def lines(out: Path) -> list[dict[str, Any]]:
    """Of the journal, half a line at its end left out."""
    whole = (out / "requests.jsonl").read_bytes().rpartition(b"\n")[0]
    return list(map(json.loads, whole.splitlines()))


def measured(out: Path) -> list[dict[str, Any]]:
    return [line for line in lines(out) if line.get("phase") == "measured"]


SETS_OF_RUN = 2 * SETS + SETS_REPEATED
"""The small run has two classes, and its first cell once more; in each set both arms have a block."""


def sets(out: Path) -> list[tuple[Any, ...]]:
    """The sets of which both arms have ended their block, in their order."""
    arms: dict[tuple[Any, ...], set[str]] = {}
    for one in lines(out):
        if one["kind"] == "block":
            arms.setdefault((one["class"], one["round"], one["block"]), set()).add(one["arm"])
    return [key for key, ended in arms.items() if len(ended) == 2]


def nothing_is_lost_or_there_twice(out: Path, classes: int = 2) -> None:
    """Each set of the small run was carried out in one sitting, with four waves of requests that both arms were asked;
    no request is there twice."""
    asked = [(line["arm"], line["pair_id"]) for line in lines(out) if line["kind"] == "request"]
    assert len(asked) == len(set(asked))
    by_name: dict[tuple[Any, ...], dict[str, set[str]]] = {}
    for line in measured(out):
        name = line["pair_id"].rpartition(".")[0]  # sets that are measured again have another
        arms = by_name.setdefault((line["class"], line["round"], line["block"], name), {})
        arms.setdefault(line["arm"], set()).add(line["pair_id"])
    whole = {
        key[:3]
        for key, arms in by_name.items()
        if len(arms) == 2 and len(set.intersection(*arms.values())) >= 8
    }
    assert len(whole) == classes * SETS + SETS_REPEATED
    assert whole == set(sets(out))


def summary(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def together(one: Seen, other: Seen) -> bool:
    return one.began < other.ended and other.began < one.ended


def test_a_run_ends_in_raw_records_and_more(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    for arm, timing in endpoint.arms.items():
        # On a busy machine quick chunks come all at once, and have no TPOT.
        endpoint.arms[arm] = replace(timing, step_s=0.005)
    assert run() == 0
    nothing_is_lost_or_there_twice(out)
    found = summary(out)
    assert (found["run"]["complete"], found["run"]["provenance"]) == (True, "measured")
    assert found["run"]["token_source"] == "usage-per-chunk"
    tpot = [c for c in found["comparisons"] if c["metric"] == "tpot_s"]
    assert [(c["class"], c["verdict"]) for c in tpot] == [("chat", "faster"), ("raw", "faster")]
    spec = next(c for c in found["cells"] if c["arm"] == "spec")
    assert spec["acceptance"]["distribution"].keys() == {"2", "4"}
    assert spec["output_equality"]["rate"] == 1.0
    printed = capsys.readouterr()
    assert "faster" in printed.out
    assert "[2/" in printed.err
    page, beside = printed.err.splitlines()[-2:]
    assert page == f"Page: {out}/report.html"
    assert "requests.csv" in beside
    assert found["sentence"][:20] in (out / "report.html").read_text()
    (out / "summary.json").unlink()
    assert reported(out)
    assert (summary(out), capsys.readouterr().out) == (found, printed.out)
    assert reported(out, "--json")
    assert json.loads(capsys.readouterr().out) == found


def test_arms_get_the_same_requests_but_never_together(run: Run, out: Path, endpoint: Endpoint) -> None:
    run("--warmup 0")
    asked = {arm: [seen for seen in endpoint.seen if seen.arm == arm] for arm in ("steady", "spec")}
    bodies = [[json.dumps(seen.body) for seen in of_arm] for of_arm in asked.values()]
    assert [len(set(of_arm)) for of_arm in bodies] == [len(of_arm) for of_arm in bodies], "none comes again"
    assert len(set(bodies[0]) & set(bodies[1])) >= 8 * SETS_OF_RUN
    nothing_is_lost_or_there_twice(out)
    assert not any(together(one, other) for one in asked["steady"] for other in asked["spec"])
    in_flight = [sum(b.began <= a.began < b.ended for b in asked["steady"]) for a in asked["steady"]]
    assert max(in_flight) == 2
    phases = {line["phase"] for line in lines(out) if line["kind"] == "request"}
    assert phases == {"ramp", "measured", "drain"}
    for one in (line for line in lines(out) if line["kind"] == "block"):
        assert 4 * STEADY.first_s <= one["steady_until_s"] - one["steady_from_s"] < one["duration_s"]
    planned = summary(out)["run"]["requests_planned"]
    assert planned == 2 * 8 * SETS_OF_RUN, "what counts, at least; no ramp and no drain"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [5, 20])
def test_the_same_command_goes_on_with_cut_sets(run: Run, out: Path, endpoint: Endpoint, lost: int) -> None:
    run()
    whole = sets(out)
    lose(out, lost)
    kept, ended = lines(out), sets(out)
    endpoint.seen.clear()
    assert run() == 0
    assert lines(out)[: len(kept)] == kept, "what was recorded stays"
    nothing_is_lost_or_there_twice(out)
    since = lines(out)[len(kept) :]
    again = [(one["class"], one["round"], one["block"]) for one in since if one["kind"] == "block"]
    assert again[::2] == again[1::2] == whole[len(ended) :], (
        "both arms, where one of them had not ended its block"
    )
    assert 1 <= len(again[::2]) <= 3
    names = {one["pair_id"] for one in kept if one["kind"] == "request"}
    assert not names & {one["pair_id"] for one in since if one["kind"] == "request"}, "with other nonces"
    assert len(endpoint.seen) == sum(one["kind"] == "request" for one in since)
    assert (summary(out)["run"]["sittings"], summary(out)["run"]["complete"]) == (2, True)
    endpoint.seen.clear()
    assert run() == 0
    assert endpoint.seen == [], "a finished run asks nothing again"


@pytest.mark.slow
def test_servers_are_warmed_up_with_what_a_rate_keeps_busy(run: Run, out: Path, endpoint: Endpoint) -> None:
    endpoint.arms["spec"] = replace(endpoint.arms["spec"], first_s=0.3)
    assert run("--rate 40 --requests 8 --warmup 4", only="raw") == 0
    warm = [one for one in lines(out) if one["kind"] == "request" and one["phase"] == "warmup"]
    assert {one["concurrency"] for one in warm} >= {4}
    assert max(one["concurrency"] for one in warm) >= 12, "40 a second, 0.3 seconds each"
    largest = [one for one in warm if one["concurrency"] == max(each["concurrency"] for each in warm)]
    assert {one["arm"] for one in largest} == {"steady", "spec"}, "the arms alike"


def test_another_clients_run_is_only_read(run: Run, out: Path, endpoint: Endpoint, capsys: Captured) -> None:
    assert run(only="raw") == 0
    lose(out, 5)
    opening, *rest = lines(out)
    older = json.dumps(opening | {"client": "0.2.0"})
    (out / "requests.jsonl").write_text("\n".join([older, *map(json.dumps, rest)]) + "\n")
    before = (out / "requests.jsonl").read_bytes()
    endpoint.seen.clear()
    capsys.readouterr()
    assert run(only="raw") == 2
    (told,) = capsys.readouterr().err.splitlines()
    for part in (str(out), "measured by client 0.2.0", "choose another --out"):
        assert part in told
    assert (out / "requests.jsonl").read_bytes() == before
    assert endpoint.seen == []
    assert main(["report", str(out)]) in (0, 1)


@pytest.mark.slow
def test_a_cell_has_its_minutes_and_says_how_long_is_left(run: Run, out: Path, capsys: Captured) -> None:
    for number, minutes in enumerate((0.4, 0.02)):  # of the first, a block has three seconds
        assert run(f"--requests 200 --out {out / str(number)}", only="raw", cell_minutes=minutes) == 0
    many, few = (len(measured(out / str(number))) for number in (0, 1))
    assert many >= 2 * 200 + 2 * 100
    assert few < many / 2
    ended = [line for line in lines(out / "1") if line["kind"] == "block"]
    assert sum(line["duration_s"] for line in ended if line["round"] == 1) < 1.5 * 0.02 * 60 + 1
    said = capsys.readouterr().err
    (first, second) = re.findall(r"about (\d+) s of load: 1 cell, the first cell again, 12 blocks", said)
    assert int(second) <= 2 < int(first)
    left = [int(found) for found in re.findall(r"\(about (\d+) s left\)", said)]
    assert len(left) == 2 * 12
    assert left[0] > left[11]


def test_a_folder_takes_one_plan_of_one_writer(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    out.write_text("")
    assert run() == 3, "it is a file"
    assert "File exists" in capsys.readouterr().err.splitlines()[-1]
    out.unlink()
    with Journal(out):
        assert run() == 2
    assert "another run writes it" in capsys.readouterr().err

    endpoint.arms["spec"] = replace(SPEC, owned_by="emulator")
    run("--requests 2", only="raw")
    assert summary(out)["run"]["provenance"] == "emulated", "because one arm is"
    assert "EMULATED" in capsys.readouterr().out
    before = (out / "requests.jsonl").read_bytes()
    assert run("--requests 4", only="raw") == 2
    assert "another plan" in capsys.readouterr().err
    assert (out / "requests.jsonl").read_bytes() == before
    endpoint.arms["spec"] = SPEC
    lose(out, 1)
    assert run("--requests 2", only="raw") == 2
    assert "are emulated, the arms are now measured" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("now", [-1e6, 253_402_000_000.0], ids=["1969", "9999"])
def test_a_run_is_read_again_whatever_the_clock_says(
    run: Run, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, now: float
) -> None:
    late_s = now - time.time()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + late_s)
    assert run() == 0
    capsys.readouterr()
    before = (out / "requests.jsonl").read_bytes()
    assert (run(), main(["report", str(out)]), main(["results", str(out.parent)])) == (0, 0, 0)
    assert (out / "requests.jsonl").read_bytes() == before, "nothing was left to ask"
    assert "cannot be used" not in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["address", "model"])
def test_an_arm_that_cannot_answer_ends_the_run(run: Run, out: Path, capsys: Captured, wrong: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        ended = run(f"--arm spec={url}") if wrong == "address" else run(model="other/model")
    assert ended == 3
    (error,) = capsys.readouterr().err.splitlines()
    told = {"address": f"spec: {url}", "model": "serves Qwen/Qwen3-32B, not 'other/model'"}
    assert told[wrong] in error
    assert not out.exists()
