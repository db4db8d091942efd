"""How a program in an image reaches the image's own code, which may not load without a device.

Standard library only: it runs in the images of the arms. Written for Python 3.10 and later.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

Arm = Mapping[str, Any]
Finding = dict[str, str]


class CannotSay(Exception):
    """The image's code cannot be asked here."""


def load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise CannotSay(f"no {name} in this image ({type(error).__name__}: {error})") from None


def lookup(name: str, modules: tuple[str, ...]) -> Any:
    """Return the name from the first of these modules that has it."""
    why = ""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:  # whatever an import without a device ends with
            why = why or f"{type(error).__name__}: {error}"
    raise CannotSay(f"no {name} in this image ({why})")


def field_names(of: Any) -> set[str]:
    if not dataclasses.is_dataclass(of):
        raise CannotSay(f"{of} is not a dataclass in this version")
    return {field.name for field in dataclasses.fields(of)}


def one_line(text: str) -> str:
    return " ".join(text.split())[:400]
