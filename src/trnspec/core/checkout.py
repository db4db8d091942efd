"""The repository, where this runs from a checkout and not from an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

from trnspec.core.findings import Misuse

ROOT = Path(__file__).resolve().parents[3]
"""The repository. Of an installed package, a folder that has nothing of it."""


def is_checkout() -> bool:
    return (ROOT / "src" / "trnspec").is_dir()


def require_checkout(typed: str) -> None:
    """Let `infra` and `cdk8s_charts` be those of this checkout. Raises `Misuse` outside of one."""
    if not is_checkout():
        raise Misuse(
            f"needs the repository, and this is an installed package; clone it and type ./{typed} there"
        )
    if sys.path[:1] != [str(ROOT)]:
        sys.path.insert(0, str(ROOT))
