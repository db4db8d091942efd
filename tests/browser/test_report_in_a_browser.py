"""The report in a real browser: on a desk and on a phone, light and dark, folded and open, on paper.

Needs Debian's chromium and chromium-driver, else it is skipped; TRNSPEC_BROWSER=required makes that a failure. `scripts/test` leaves
this folder out, `.ci/run` has a lane for it.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.show.runs import CLASSES
from tests.browser.picture import PICTURE, SIZE, photograph

LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
DESK, PHONE, PAPER = (1280, 800), (400, 800), (695, 980)
SCREENS = {"desk": DESK, "phone": PHONE}
CASES = (
    *("reference", "sweep", "failures", "two endpoints"),
    *("loads", "long names", "ladder", "many requests", "nothing asked", "against the forecast"),
)
ANSWERS = {"reference": True, "sweep": True, "failures": True, "two endpoints": False}
"""Pages whose answer is on the first screen, and whether their arms have prices."""
MOST_HIGH = {"reference": 5_000, "sweep": 8_000, "ladder": 8_000}

Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Opened:
    def opened(case: str, size: tuple[int, int], *, scheme: str = "light", media: str = "screen") -> Any:
        """A page in a window of a size, in a colour scheme or as print has it; returns the browser."""
        window = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        browser.get(pages[case].as_uri())
        return browser

    return opened


def _looked_at(browser: Any, *, printed: bool = False) -> list[str]:
    found: list[str] = browser.execute_script(LOOK, {"printed": printed})
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_overflows_pales_or_repeats(
    opened: Opened, case: str, screen: str, scheme: str
) -> None:
    browser = opened(case, SCREENS[screen], scheme=scheme)
    dark = browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == (scheme == "dark")
    assert _looked_at(browser) == []
    browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert _looked_at(browser) == []


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("case", ANSWERS)
def test_the_first_screen_has_the_question_the_answer_and_the_picture(
    opened: Opened, case: str, screen: str
) -> None:
    browser = opened(case, SCREENS[screen])
    table = [".picture .lane svg", ".picture td.speed", *([".picture td.usd"] if ANSWERS[case] else [])]
    wanted = ["h1", ".answer", ".condition", *table]
    for selector in wanted:
        boxes = browser.execute_script(
            "return [...document.querySelector('header').parentElement.querySelectorAll("
            "/^(.picture|figure)/.test(arguments[0]) ? 'section[aria-label^=Speed-up] > ' + arguments[0] : arguments[0])]"
            ".map(one => one.getBoundingClientRect().toJSON())",
            selector,
        )
        assert boxes, selector
        for box in (
            boxes[:1] if screen == "phone" else boxes
        ):  # below the evidence, a phone shows the table's beginning
            assert box["width"] > 0
            assert box["left"] >= 0
            assert box["right"] <= SCREENS[screen][0]
            assert box["bottom"] <= SCREENS[screen][1], (selector, box)
    rows = browser.execute_script("return document.querySelector('.picture').tBodies[0].rows.length")
    assert rows == (len(CLASSES) if case != "two endpoints" else 3) + 1


def test_the_page_as_first_shown_is_not_long_and_any_width_shows_it_whole(opened: Opened) -> None:
    for case, most in MOST_HIGH.items():
        assert opened(case, DESK).execute_script("return document.documentElement.scrollHeight") <= most
    for width in (720, 900, 1100):
        assert _looked_at(opened("sweep", (width, 800))) == [], width


@pytest.mark.parametrize("case", ["reference", "sweep"])
def test_all_lanes_of_a_table_are_one_below_the_other(opened: Opened, case: str) -> None:
    """Else they would not share their axis."""
    for size in SCREENS.values():
        ends = opened(case, size).execute_script(
            "return [...document.querySelectorAll('.picture')].filter(one => one.checkVisibility()).map(one => ["
            "...one.querySelectorAll('.axis, .lane')].map(at => [at.getBoundingClientRect().left, at.getBoundingClientRect().right]))"
        )
        assert len(ends) >= 2
        for of_table in ends:
            lefts, rights = zip(*of_table, strict=True)
            assert max(lefts) - min(lefts) < 1
            assert max(rights) - min(rights) < 1


@pytest.mark.parametrize("case", ["reference", "sweep", "long names", "ladder", "against the forecast"])
def test_on_paper_every_fold_is_open_and_no_word_is_broken_or_beyond_the_sheet(
    opened: Opened, case: str
) -> None:
    browser = opened(case, PAPER, media="print")
    hidden = browser.execute_script(
        "return [...document.querySelectorAll('details:not(.sample) > :not(summary)')].filter("
        "one => !one.getBoundingClientRect().height && one.textContent.trim()).map(one => one.textContent.slice(0, 80))"
    )
    assert hidden == []
    assert _looked_at(browser, printed=True) == []
    sheet = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert sheet.startswith(b"%PDF")


def test_the_picture_for_the_readme_is_the_first_screen_and_small(
    browser: Any, pages: dict[str, Path]
) -> None:
    made = photograph(pages["reference"])
    for picture in (made, PICTURE.read_bytes()):
        width, height = struct.unpack(">II", picture[16:24])
        assert (width, height) == SIZE
        assert 20_000 < len(picture) < 200_000


def test_the_browser_complains_of_nothing(opened: Opened) -> None:
    log = opened("reference", DESK).get_log("browser")
    assert [entry for entry in log if "favicon" not in entry["message"]] == []
