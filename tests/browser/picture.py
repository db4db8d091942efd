"""The first screen of a report as a picture for the README: `python -m tests.browser.picture RESULTS`.

Needs Debian's chromium and chromium-driver. The committed picture is of a demonstration:

    ./trnspec demo --out results/picture && .venv/bin/python -m tests.browser.picture results/picture
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from pathlib import Path

from selenium import webdriver

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "report.png"
SIZE = (1280, 800)


def browser(profile: Path) -> webdriver.Chrome:
    """chromium without a window, with an empty profile; it asks no network for anything."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def photograph(page: Path) -> bytes:
    """A PNG of what `page` shows first."""
    with tempfile.TemporaryDirectory() as profile:
        opened = browser(Path(profile))
        try:
            window = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": True}
            opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
            opened.get(page.resolve().as_uri())
            return base64.b64decode(opened.get_screenshot_as_base64())
        finally:
            opened.quit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.browser.picture", description=__doc__)
    parser.add_argument("folder", type=Path, help="results with a report.html")
    PICTURE.write_bytes(photograph(parser.parse_args().folder / "report.html"))
