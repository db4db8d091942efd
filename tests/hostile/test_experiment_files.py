"""Experiment files that nobody would write on purpose: each is refused in short, clean lines, and soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment import InvalidExperiment, load

WHOLE_FILES = {
    "empty": b"",
    "only a comment": b"# nothing\n",
    "not UTF-8": b"name: \xff\xfe\n",
    "a scalar": b"42\n",
    "a list": b"- name: x\n",
    "an alias that contains itself": b"a: &a [*a]\n",
    "nested deeply": b"[" * 500 + b"]" * 500,
    "many aliases": b"a: &a 1\nb: [" + b"*a," * 500 + b"]\n",
    "two documents": b"name: a\n---\nname: b\n",
    "a Python object": b"name: !!python/object/apply:os.system [id]\n",
    "an open quote": b'name: "open\n',
    "a tab as indentation": b"name:\n\t- x\n",
}


@pytest.mark.parametrize("case", WHOLE_FILES)
def test_a_file_that_is_not_an_experiment_is_refused_in_one_clean_line(case: str, tmp_path: Path) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_bytes(WHOLE_FILES[case])
    with pytest.raises(InvalidExperiment) as refused:
        load(file)
    for line in refused.value.lines:
        assert line.startswith(str(file))
        assert len(line) < 1000
        assert line.isprintable()
