"""The Jinja environment. Templates are compiled once and stored next to their sources, as Python does with its bytecode."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket

_BYTECODE = "__pycache__"


class _BytecodeCache(jinja2.FileSystemBytecodeCache):
    """A cache of bytecode in a folder that may be read-only."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                os.makedirs(self.directory, exist_ok=True)
                super().dump_bytecode(bucket)


def environment(folder: Path, **settings: Any) -> jinja2.Environment:
    """The environment for the templates of a folder. An undefined name in a template is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_BytecodeCache(str(folder / _BYTECODE)),
        **settings,
    )


def compile_all(*environments: jinja2.Environment) -> None:
    """Compile every template now, as `python -m compileall` does with modules."""
    for templates in environments:
        for name in templates.list_templates(
            filter_func=lambda name: name.endswith((".html", ".svg", ".txt", ".jinja"))
        ):
            templates.get_template(name)
