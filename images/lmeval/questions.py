"""Put gsm8k into the image, at one commit and with the content that is known for it; runs once, at build.

Commit and hashes are public records of the data set's repository (https://huggingface.co/datasets/openai/gsm8k). The
files' bytes are compared first; what `datasets` then makes of them is what lm-eval finds without a network.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

DATASET, CONFIGURATION = "openai/gsm8k", "main"
REVISION = "740312add88f781978c0658806c59bc2815b9866"
SHA256 = {
    "main/test-00000-of-00001.parquet": "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59",
    "main/train-00000-of-00001.parquet": "ea82612ea9582142387730c793eb67d3b12849002bc0b7fa6f8efafa7351419d",
}
"""Questions, and the worked examples that precede them."""


def record() -> str:
    """What is in the image, as it is stored beside every answer."""
    return json.dumps({"dataset": DATASET, "revision": REVISION, "sha256": SHA256}, indent=1) + "\n"


def refuse_other(path: Path, wanted: str) -> None:
    """End the build when a file is not the one that is known."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wanted:
        sys.exit(
            f"{DATASET} at {REVISION}: {path.name} has sha256 {found}, not {wanted}; look at the data set's history"
        )


def main(folder: Path) -> None:
    """Download, compare, prepare, record."""
    from datasets import load_dataset
    from huggingface_hub import hf_hub_download

    for name, wanted in SHA256.items():
        refuse_other(Path(hf_hub_download(DATASET, name, repo_type="dataset", revision=REVISION)), wanted)
    load_dataset(DATASET, CONFIGURATION, revision=REVISION)
    (folder / "questions.json").write_text(record(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
