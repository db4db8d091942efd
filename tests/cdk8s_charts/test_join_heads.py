"""Medusa's heads: published under one set of names, read by NxD Inference under another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cdk8s_charts import join_heads
from lab.real.installation import is_installed
from tests.conftest import ROOT

ENGINE = ROOT / ".lab" / "venv" / "bin" / "python"
"""The lab's environment, which has torch."""
PUBLISHED = [f"{head}.{part}" for head in range(5) for part in join_heads.PARTS]
"""As in `medusa_lm_head.pt` of FasterDecoding/medusa-vicuna-7b-v1.3: five heads, whatever its configuration says."""
NETWORKS = """
import sys, torch
from pathlib import Path
from torch import nn
sys.path.insert(0, sys.argv[1])
from cdk8s_charts.join_heads import join

class Block(nn.Module):  # of Medusa and of NxD Inference alike
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + nn.functional.silu(self.linear(x))

def heads(count):
    return [nn.Sequential(Block(), nn.Linear(8, 12, bias=False)) for _ in range(count)]

base = Path(sys.argv[2])
for name in ("target", "heads"):
    (base / name).mkdir()
(base / "target" / "config.json").write_text("{}")
published = nn.ModuleList(heads(5))
if sys.argv[3] == "pt":
    torch.save(published.state_dict(), base / "heads" / "medusa_lm_head.pt")
else:
    from safetensors.torch import save_file
    save_file(published.state_dict(), base / "heads" / "medusa_lm_head.safetensors")
for _ in range(2):  # a pod that was cut off begins again
    join(base / "target", base / "heads", base / "out", 4)
reader = nn.ModuleDict({f"medusa_head_{number}": head for number, head in enumerate(heads(4))})  # NxD Inference's names
reader.load_state_dict(torch.load(base / "out" / "medusa_heads.pt", map_location="cpu"), strict=True)
x = torch.randn(3, 8)
for number in range(4):
    assert torch.equal(reader[f"medusa_head_{number}"](x), published[number](x))
assert (base / "out" / "config.json").read_text() == "{}"
assert sorted(path.name for path in (base / "out").iterdir()) == ["config.json", "medusa_heads.pt"]
"""


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


@pytest.mark.skipif(
    not is_installed(ROOT / ".lab"),
    reason="no torch: the lab's engine is not installed (scripts/lab does it)",
)
@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_rewritten_heads_compute_what_the_published_ones_do(tmp_path: Path, form: str) -> None:
    command = [str(ENGINE), "-c", NETWORKS, str(ROOT), str(tmp_path), form]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
