"""Stands in for llmperf's program where Ray is not: takes its options, asks nobody, behaves as it is told to.

`STANDIN` in the environment says how: `hang` after everything is stored, `die` after the first request, `mute` from the start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-num-completed-requests", type=int)
    parser.add_argument("--results-dir", type=Path)
    options, _ = parser.parse_known_args()
    manner = os.environ.get("STANDIN", "")
    if manner == "mute":
        sys.exit("ray is not in the mood")
    text = Path(os.environ["LLMPERF_TEXT"], "sonnet.txt").read_text() if "LLMPERF_TEXT" in os.environ else ""
    with Path(os.environ["LLMPERF_RECORDS"]).open("a") as file:
        for number in range(options.max_num_completed_requests):
            file.write(json.dumps(_line(number, text)) + "\n")
            file.flush()
            if manner == "die":
                sys.exit("ray died")
    options.results_dir.mkdir(parents=True, exist_ok=True)
    (options.results_dir / "M_64_13_individual_responses.json").write_text("[]")
    if manner == "hang":
        time.sleep(60)


def _line(number: int, text: str) -> dict[str, object]:
    return {
        "error_code": None,
        "error_msg": "",
        "number_input_tokens": 64,
        "started_unix_s": 1_790_000_040.0 + number,
        "prompt_sha256": f"{number:064x}",
        "chunk_s": [0.1, 0.2],
        "stream_chunks": 3,
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
        "finish_reason": "stop",
        "done": True,
        "text": f"{os.environ['OPENAI_API_BASE']} {text}",
    }


if __name__ == "__main__":
    main()
