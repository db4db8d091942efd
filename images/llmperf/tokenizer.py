"""Put llmperf's tokenizer where llmperf finds it without a network: `python tokenizer.py FOLDER`.

llmperf loads `hf-internal-testing/llama-tokenizer`; transformers takes a folder of that name below the working directory
for it. The revision is the last one that changed its vocabulary (as its page of files shows), and the download is held
against the tokens that the documentation of transformers gives for a sentence.
https://huggingface.co/docs/transformers/model_doc/llama#transformers.LlamaTokenizerFast
"""

from __future__ import annotations

import sys
from pathlib import Path

from huggingface_hub import snapshot_download
from transformers import LlamaTokenizerFast

NAME = "hf-internal-testing/llama-tokenizer"
REVISION = "106b98e3587822d2dd583a26ea39bdd43d4c61af"
FILES = ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"]
SENTENCE, TOKENS = "Hello this is a test", [1, 15043, 445, 338, 263, 1243]


def check(folder: Path) -> None:
    """Exit with one line where the folder holds another tokenizer."""
    found = LlamaTokenizerFast.from_pretrained(str(folder)).encode(SENTENCE)
    if found != TOKENS:
        sys.exit(f"{folder}: makes {found} of {SENTENCE!r}, not {TOKENS}; this is not llmperf's tokenizer")


if __name__ == "__main__":
    target = Path(sys.argv[1]) / NAME
    snapshot_download(NAME, revision=REVISION, allow_patterns=FILES, local_dir=target)
    check(target)
    (target / "REVISION").write_text(f"{REVISION}\n", encoding="utf-8")
