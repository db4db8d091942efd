"""Experiments, deployment.yaml and pipeline.yaml as nobody would write them: refused in short, clean lines, and soon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.findings import Misuse
from experiment import load
from infra.deployment_file import read_deployment
from infra.pipeline.pipeline_file import read_pipeline

REFERENCE = Path("experiments/qwen3-32b.yaml").read_text(encoding="utf-8")
DRAFT = "Qwen/Qwen3-1.7B"
HEAD = REFERENCE.partition("prompts:")[0]


def _instead_of_draft(text: str) -> bytes:
    return REFERENCE.replace(DRAFT, text).encode()


READERS: tuple[Callable[[Path], object], ...] = (load, read_deployment, read_pipeline)
OF_ANY_KIND: dict[str, bytes] = {
    "not UTF-8": b"admins: \xff\xfe\n",
    "an ESC byte": b"admins: \x1b[31m\n",
    "an alias that contains itself": b"admins: &a [*a]\n",
    "a MiB and more": b"#" * (2**20 + 1),
    "keys that clear the screen": b'version: 1\n"\\e[2J\\r\\nforged: fine": 1\n',
    "a NUL": b"name: \x00\n",
    "two documents": b"name: a\n---\nname: b\n",
    "an open quote": b'name: "open\n',
    "a merge of itself": b"a: &a\n  <<: *a\n",
    "a merge of a number": b"<<: 5\n",
    "nested mappings": b"{a: " * 500 + b"}" * 500,
    "a Python object": b"name: !!python/object/apply:os.system [id]\n",
    "an empty int": b"version: !!int ''\n",
    "a tagged mapping": b"!!map\nversion: 1\n",
    "a key of many digits": b"? 0x" + b"F" * 5_000 + b"\n: 1\n",
    "a list as a key": b"? [a, b]\n: 1\n",
}
FILES: dict[str, bytes] = {
    "a MiB of comment": b"#" * (2**20 - 1),
    "an open quote of a MiB": b'"' + b"\\n" * 500_000,
    "few aliases that mean much": b"a: &a [%s]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n"
    % (b"1," * 5000),
    "hexadecimal of 900,000 digits": b"version: 0x" + b"F" * 900_000,
    "octal of 100,000 digits": b"version: 0" + b"7" * 100_000,
    "sexagesimal of 300,000 places": b"version: 1" + b":59" * 300_000,
    "90,000 unknown keys": b"\n".join(b"k%d: 1" % number for number in range(90_000)),
    "5,000 unknown keys": REFERENCE.encode() + b"\n".join(b"k%d: 1" % number for number in range(5_000)),
    "400,000 items": b"arms: [" + b"1," * 400_000 + b"]",
    "a key of 100,000 letters": b"? " + b"k" * 100_000 + b"\n: 1\n",
    "a key with dots": b"version: 1\n" + b"a." * 5_000 + b": 1\n",
    "keys that turn the direction": "version: 1\n\u202eenif: 1\n".encode(),
    "a class that forges a line": (HEAD + 'prompts:\n  classes: {"a\\nforged: fine": [b]}\n').encode(),
    "6,000 classes": (
        HEAD + "prompts:\n  classes:\n" + "".join(f"    c{number}: [a]\n" for number in range(6_000))
    ).encode(),
    "a model of 200,000 letters": _instead_of_draft("Q" * 200_000),
    "a model that forges a line": _instead_of_draft('"Q\\e[31m\\nforged: fine"'),
    "a model that is a list": _instead_of_draft("[[[]]]"),
    "a model that is null": _instead_of_draft("null"),
    "a name of 500,000 letters": REFERENCE.replace("name: qwen3-32b", "name: " + "n" * 500_000).encode(),
    "infinity": REFERENCE.replace("concurrency: [4]", "concurrency: [.inf]").encode(),
    "not a number": REFERENCE.replace("temperature: 0", "temperature: .nan").encode(),
}


def _clean(path: Path, read: Callable[[Path], object] = load) -> None:
    began = time.process_time()
    with pytest.raises(Misuse) as refused:
        read(path)
    # The bound is far above what any of them takes (0.3 s), and far below what the worst took before (17 s).
    assert time.process_time() - began < 5
    assert 1 <= len(refused.value.lines) <= (101 if read is load else 1)
    for line in refused.value.lines:
        assert len(line) < 2000
        assert line.isprintable()


@pytest.mark.parametrize("case", OF_ANY_KIND)
def test_a_file_that_nobody_would_write_is_refused_in_clean_lines_by_every_reader(
    case: str, tmp_path: Path
) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_bytes(OF_ANY_KIND[case])
    for read in READERS:
        _clean(file, read)


@pytest.mark.parametrize("case", FILES)
def test_a_hostile_experiment_is_refused_in_short_clean_lines(case: str, tmp_path: Path) -> None:
    file = tmp_path / "a\nb: \x1b[2J.yaml"
    file.write_bytes(FILES[case])
    _clean(file)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", ".", "nowhere.yaml", "a\0b", "x" * 300, "pipe"])
def test_what_is_not_a_file_is_refused(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to which nobody writes
    for read in READERS:
        _clean(tmp_path / path, read)


PROMPT = b'{"id": "a", "class": "c", "prompt": "p", "max_tokens": '
PROMPTS: dict[str, bytes] = {
    "not UTF-8": b"\xff",
    "a long line": b"x" * 5_000_000,
    "an id that forges a line": b'{"id": "a\\nb", "class": "c", "prompt": "p"}',
    "a key of 100,000 letters": b'{"id": "a", "class": "c", "' + b"k" * 100_000 + b'": "p"}',
    "a number of 5,000 digits": PROMPT + b"9" * 5_000 + b"}",
    "a number of 400 digits": PROMPT + b"9" * 400 + b"}",
}
ELSEWHERE = ("/dev/zero", ".", "nowhere.jsonl", "../nowhere", '"a\\0b"')


@pytest.mark.parametrize("case", [*PROMPTS, *ELSEWHERE])
def test_hostile_prompts_are_refused_in_short_clean_lines(case: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(PROMPTS.get(case, b""))
    name, file = "mine.jsonl" if case in PROMPTS else case, tmp_path / "hostile.yaml"
    file.write_text(HEAD + f"prompts: {{file: {name}}}\n" + "benchmark: {requests: 32}\n")
    _clean(file)
