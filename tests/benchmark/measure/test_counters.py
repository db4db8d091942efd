from __future__ import annotations

from benchmark.measure.loader import counters_in, metrics_url

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30
vllm:spec_decode_num_accepted_tokens_total 21
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",engine="1"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 8.0
vllm:num_requests_running{engine="0"} 1.0
"""


def test_counters_are_summed_over_engines_and_kept_by_position() -> None:
    assert counters_in(METRICS) == {
        "vllm:spec_decode_num_drafts_total": 15.0,
        "vllm:spec_decode_num_draft_tokens_total": 30.0,
        "vllm:spec_decode_num_accepted_tokens_total": 21.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/0": 13.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/1": 8.0,
    }


def test_a_server_without_them_has_none() -> None:
    assert counters_in("vllm:num_requests_running 1\n") is None
    assert counters_in("<html>not metrics</html>") is None
    assert counters_in("vllm:spec_decode_num_drafts_total many\n") is None


def test_metrics_are_beside_the_api() -> None:
    assert metrics_url("http://host:8000/v1") == "http://host:8000/metrics"
