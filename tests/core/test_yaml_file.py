"""YAML that others wrote: what keeps a file from being read, and keys that appear twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnspec.core.findings import Misuse
from trnspec.core.yaml_file import read_yaml

BOMB = "\n".join(
    f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' for _ in range(9))}]" if n else "a0: &a0 [1]" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("a: [", "is not valid YAML at line"),
        ("a: &a [*a]", "nests without end"),
        ("[" * 200_000, "nests more than 20 levels"),
        (BOMB, "more than 20 aliases"),
        ("description: 2024-13-45", "a value that YAML cannot read"),
        ("seed: " + "9" * 5000, "a number of 5000 characters"),
        ("a: !!int abc", "has the tag '!!int' at line 1"),
        ("a: " + "x" * 2**20, "is larger than 1 MiB"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_keeps_a_file_from_being_read_is_one_finding(
    tmp_path: Path, text: str | bytes | None, words: str
) -> None:
    path = tmp_path / "broken.yaml"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(Misuse, match=words) as caught:
        read_yaml(path)
    assert len(caught.value.findings) == 1


@pytest.mark.parametrize(
    ("times", "words"),
    [(2, "twice, on lines 1 and 2"), (9000, "9000 times, on lines 1, 2, 3, 4 and 8996 more")],
)
def test_a_key_that_appears_several_times_is_said_once(tmp_path: Path, times: int, words: str) -> None:
    (tmp_path / "doubled.yaml").write_text("name: x\n" * times + "other: [1, {a: b}]\n")
    document, lines, (finding,) = read_yaml(tmp_path / "doubled.yaml")
    assert document == {"name": "x", "other": [1, {"a": "b"}]}
    assert lines["other[1].a"] == times + 1
    assert (finding.where, finding.why) == ("name", f"the key appears {words}")
