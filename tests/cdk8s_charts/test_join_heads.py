"""Medusa's heads: published under one set of names, read by NxD Inference under another."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdk8s_charts import join_heads

PUBLISHED = [f"{head}.{part}" for head in range(5) for part in join_heads.PARTS]
"""As in `medusa_lm_head.pt` of FasterDecoding/medusa-vicuna-7b-v1.3: five heads, whatever its configuration says."""


@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_head_"])
def test_each_tensor_gets_the_name_under_which_it_is_read(prefix: str) -> None:
    names = join_heads.renamed([prefix + name for name in PUBLISHED], 4)
    assert names == {f"{prefix}{name}": f"medusa_head_{name}" for name in PUBLISHED[:12]}


@pytest.mark.parametrize(
    ("names", "count", "words"),
    [
        (PUBLISHED[:2], 1, "head 0 has 0.linear.bias, 0.linear.weight; NxD Inference"),
        ([*PUBLISHED[:2], "0.1.linear.weight", "0.2.weight"], 1, "and nothing else"),
        (PUBLISHED[:6], 4, "holds heads 0, 1, and 4 are asked for"),
        (PUBLISHED[3:], 4, "holds heads 1, 2, 3, 4, and 4 are asked for"),
        (["model.embed_tokens.weight"], 4, "model.embed_tokens.weight, which is not part of a Medusa head"),
        ([], 1, "holds heads none"),
    ],
)
def test_heads_that_would_be_left_out_are_refused(names: list[str], count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        join_heads.renamed(names, count)


def test_a_folder_without_heads_or_with_several_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no heads"):
        join_heads.published(tmp_path)
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"several files of heads: a.pt, b.pt"):
        join_heads.published(tmp_path)
