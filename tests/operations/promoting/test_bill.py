from __future__ import annotations

import pytest

from experiment import Experiment
from experiment.schema import Serve
from operations.promoting.bill import bill


@pytest.mark.parametrize(
    ("replicas", "most", "line"),
    [
        (1, 1, "1 Trn2 node, $35.76 an hour"),
        (2, 2, "1 Trn2 node, $35.76 an hour"),
        (1, 2, "1 Trn2 node, $35.76 an hour"),
        (1, 3, "1 Trn2 node, $35.76 an hour; with all replicas 2 Trn2 nodes, $71.52 an hour"),
    ],
)
def test_nodes_bill_whole(experiment: Experiment, replicas: int, most: int, line: str) -> None:
    serve = Serve(arm="qwen-sd-vllm", replicas=replicas, max_replicas=most)
    assert bill(experiment, serve).line() == line
