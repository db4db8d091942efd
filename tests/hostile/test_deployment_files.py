"""deployment.yaml and pipeline.yaml as nobody would write them: one short line for each problem, and soon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.finding import Misuse
from infra.deployment_file import read_deployment
from infra.pipeline.pipeline_file import read_pipeline

READERS: dict[str, Callable[[Path], object]] = {"deployment": read_deployment, "pipeline": read_pipeline}
FILES: dict[str, bytes] = {
    "empty": b"",
    "a list": b"- admins\n",
    "two documents": b"admins: []\n---\nadmins: []\n",
    "not UTF-8": b"admins: \xff\xfe\n",
    "a NUL": b"admins: \x00\n",
    "an ESC byte": b"admins: \x1b[31m\n",
    "an empty integer": b"admins: !!int ''\n",
    "an object of Python": b"admins: !!python/object/apply:os.system [id]\n",
    "a long integer": b"name: 0x" + b"f" * 6000 + b"\n",
    "nested lists": b"[" * 5000,
    "an alias that contains itself": b"admins: &a [*a]\n",
    "few aliases that mean much": b"a: &a [x, x]\nb: &b [*a, *a]\nadmins: [*b, *b]\n",
    "a key with an ESC byte": b'"\\e[31m": 1\n',
    "a key that is a list": b"? [a]\n: 1\n",
    "a MiB and more": b"#" * (2**20 + 1),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_nobody_would_write_is_one_clean_line(name: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / f"{reader}.yaml"
    path.write_bytes(FILES[name])
    began = time.perf_counter()
    with pytest.raises(Misuse) as caught:
        READERS[reader](path)
    said = str(caught.value)
    assert "\n" not in said
    assert "\x1b" not in said
    assert len(said) < 600
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(reader: str, tmp_path: Path) -> None:
    path = tmp_path / f"{reader}.yaml"
    os.mkfifo(path)
    with pytest.raises(Misuse, match="is not a regular file"):
        READERS[reader](path)
