"""What Prometheus reads of a run that is on."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from benchmark.analyse.summary import summarise
from benchmark.errors import PublishError
from benchmark.measure.journal import RawRun
from benchmark.metrics import COST, PERIOD_S, PUBLISHED
from benchmark.show import prometheus_page
from benchmark.show.prometheus_page import Page, served
from benchmark.show.publishing import follow
from tests.benchmark.conftest import plan_content
from tests.benchmark.records import WALL, answered, block, emulated, failed, raw_run, store
from tests.benchmark.show.test_publishing import Minutes

_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def samples(page: Page) -> dict[tuple[str, str], float]:
    """Values by name and labels."""
    lines = page.shown[0].decode().splitlines()
    found = [_SAMPLE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(found), lines
    return {(one[1], one[2]): float(one[3]) for one in found if one}


def labels(arm: str = "spec", class_: str = "chat", more: str = "") -> str:
    return f'experiment="qwen3-32b",arm="{arm}",class="{class_}",concurrency="2"{more}'


def page_at(seconds: float, raw: RawRun) -> Page:
    """The page so long after the beginning of a run that is on."""
    page = Page(clock=lambda: WALL + seconds)
    page.show(raw, active=True)
    return page


def test_a_cell_begins_with_zeros_and_is_counted_the_next_time() -> None:
    raw = raw_run(*(answered("spec", i) for i in range(3)), failed("spec", 3))
    first = samples(page := page_at(10, raw))
    cells = {key for name, key in first if name == "trnspec_errors_count"}
    assert cells == {labels(arm, class_) for arm in ("steady", "spec") for class_ in ("chat", "raw")}
    assert first["trnspec_errors_count", labels()] == 0
    assert {f"{metric.prometheus_name}_count" for metric in PUBLISHED} <= {name for name, _ in first}
    names = {
        "trnspec_output_tokens_per_second_sum",
        "trnspec_tokens_per_step_sum",
        "trnspec_ttft_seconds_sum",
    }
    assert names <= {name for name, _ in first}, "with their units in full"
    expected = {"errors_count": 4, "errors_sum": 1, "tpot_seconds_count": 3, "tpot_seconds_sum": 0.3}
    for _ in range(2):
        page.show(raw, active=True)
        found = samples(page)
        assert {name: found[f"trnspec_{name}", labels()] for name in expected} == pytest.approx(expected)


def test_quantiles_are_those_of_the_last_period_and_the_price_of_a_token_is_the_reports() -> None:
    raw = raw_run(answered("spec", 0, chunk_s=(0.1, 0.4, 0.7)), answered("spec", 200))
    found = samples(page_at(PERIOD_S + 1, raw))
    assert found["trnspec_tpot_seconds", labels(more=',quantile="0.99"')] == pytest.approx(0.1)
    assert not [name for name, key in samples(page_at(1000, raw)) if "quantile" in key]

    arms = [{**arm, "usd_per_hour": 18.0} for arm in plan_content()["arms"]]
    raw = replace(raw_run(*(answered("spec", i) for i in range(5)), arms=arms), blocks=(block(0, 6),))
    (told,) = [cell["cost"][COST.name] for cell in summarise(raw)["cells"] if cell["cost"]]
    assert told > 0
    assert samples(page_at(1, raw))[COST.prometheus_name, labels()] == pytest.approx(told)


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: apt-get install prometheus")
def test_promtool_finds_nothing_wrong() -> None:
    page = page_at(10, raw_run(*(answered(arm, i) for arm in ("steady", "spec") for i in range(9))))
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.shown[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_it_is_read_over_http_during_a_run_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_page, "LAST_LOOK_S", 0.01)
    page, lines, read = Page(clock=lambda: WALL + 1), list[str](), list[str]()
    store(emulated(raw_run(answered("spec"))), tmp_path)
    with served(page, ("127.0.0.1", 0), lines.append) as port:

        def scrape() -> None:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
                assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                read.append(reply.read().decode())

        minutes = Minutes(scrape, scrape)
        follow(tmp_path, stop=minutes, allowed=lambda opening: None, report=lines.append, page=page)
        scrape()
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{port}/elsewhere")
        with (
            pytest.raises(PublishError, match=f"--listen 127.0.0.1:{port}: Address already in use; choose"),
            served(Page(), ("127.0.0.1", port), lambda line: None),
        ):
            pass
    of = 'trnspec_run_active{experiment="qwen3-32b",provenance="emulated"} '
    assert [one.partition(of)[2][:1] for one in read] == ["1", "1", "0"]
    assert lines == [f"for Prometheus: http://127.0.0.1:{port}/metrics"]
