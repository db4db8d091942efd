"""`python -m lab.engine.lock`: write requirements.txt anew from requirements.in, a hash for each file that is installed.

Run it with Python 3.11 on Linux x86_64, the one platform of the lab's engine: only that platform's files are named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def lines(report: dict[str, Any]) -> list[str]:
    """Requirements with hashes, out of what `pip install --report` says it would install."""
    return sorted(
        f"{entry['metadata']['name'].lower()}=={entry['metadata']['version']} \\\n"
        f"    --hash=sha256:{entry['download_info']['archive_info']['hashes']['sha256']}"
        for entry in report["install"]
    )


def main() -> int:
    """Ask pip which files it would install, and write them down."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        command += ["--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
        subprocess.run([*command, "-r", str(FOLDER / "requirements.in")], check=True)
        found = lines(json.loads(report.read_text(encoding="utf-8")))
    (FOLDER / "requirements.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
