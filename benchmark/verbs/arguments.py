"""Values that options take, each refused with what it should be."""

from __future__ import annotations

import argparse


def address(text: str) -> tuple[str, str]:
    """`NAME=URL` of an arm."""
    name, equals, url = text.partition("=")
    if not (name and equals and url.startswith(("http://", "https://"))):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL with an http(s) URL")
    return name, url.rstrip("/")


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("names at least one")
    return found


def levels(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 with commas between them, each once."""
    return tuple(dict.fromkeys(positive(level) for level in text.split(",")))


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """A whole number above 0."""
    if whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


def seconds(text: str) -> float:
    """A time above 0, in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that every verb with a summary has."""
    parser.add_argument("--json", action="store_true", help="print the summary as JSON instead of the table")
