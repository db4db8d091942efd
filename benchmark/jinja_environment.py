"""The environment of Jinja templates. They are compiled once and kept beside their sources, as Python keeps its bytecode."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket

_BYTECODE = "__pycache__"


class _Kept(jinja2.FileSystemBytecodeCache):
    """Bytecode in a folder that may be read-only."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                os.makedirs(self.directory, exist_ok=True)
                super().dump_bytecode(bucket)


def environment(folder: Path, **settings: Any) -> jinja2.Environment:
    """The templates of a folder; a name that nobody gave is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_Kept(str(folder / _BYTECODE)),
        **settings,
    )


def compile_all(*environments: jinja2.Environment) -> None:
    """Compile every template now, as `python -m compileall` does with modules."""
    for made in environments:
        for name in made.list_templates(filter_func=lambda name: name.endswith((".html", ".txt", ".jinja"))):
            made.get_template(name)
