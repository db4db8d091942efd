"""The clients that are measured side by side, each as the command that its user would type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from measurements import process_tree
from measurements.process_tree import Used

ROOT = Path(__file__).resolve().parent.parent
AIPERF = "aiperf==0.13.0"
MODEL = "known-schedule"


@dataclass(frozen=True)
class Found:
    """One request as a client reports it, seconds."""

    key: str
    ttft_s: float
    e2e_s: float
    tpot_s: float


class Subject(Protocol):
    """A client."""

    @property
    def name(self) -> str: ...

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        """Run it as a process of its own and read what it says of each request."""
        ...


@dataclass(frozen=True)
class BareLoop:
    """measurements/bare_loop.py."""

    name: str = "bare loop"

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        command = [
            sys.executable,
            "measurements/bare_loop.py",
            url,
            *map(str, (requests, concurrency, tokens)),
        ]
        used = process_tree.run(command, output=out.with_suffix(".out"), folder=ROOT)
        return [_bare(json.loads(line)) for line in out.with_suffix(".out").read_text().splitlines()], used


@dataclass(frozen=True)
class OurClient:
    """`python -m benchmark run`, with everything that it writes and computes."""

    name: str = "benchmark"

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        prompts = out.with_suffix(".jsonl")
        content = {"id": "any", "class": "any", "messages": [{"role": "user", "content": "Count."}]}
        prompts.write_text(json.dumps(content) + "\n")
        command = [sys.executable, "-m", "benchmark", "run", "--prompts", str(prompts), "--model", MODEL]
        command += ["--arm", f"known={url}", "--max-tokens", str(tokens), "--requests", str(requests)]
        command += ["--concurrency", str(concurrency), "--warmup", "0", "--out", str(out)]
        used = process_tree.run(command, output=out.with_suffix(".out"), folder=ROOT)
        with (out / "requests.jsonl").open() as lines:
            records = (record for record in map(json.loads, lines) if record["kind"] == "request")
            return [_ours(record) for record in records], used


@dataclass(frozen=True)
class Aiperf:
    """aiperf, counting tokens by the server's usage, without its screens and its telemetry."""

    venv: Path
    home: Path
    prompts: Path
    name: str = "aiperf"

    @classmethod
    def prepared(cls, venv: Path, folder: Path) -> tuple[Aiperf | None, str]:
        """Install it where it is not, with a tokenizer that needs no network. Or the reason why not."""
        made = cls(venv=venv, home=folder / "hf", prompts=folder / "aiperf.jsonl")
        made.prompts.write_text('{"text": "Count."}\n')
        try:
            if not (venv / "bin" / "aiperf").exists():
                print(f"installing {AIPERF} into {venv}", file=sys.stderr)
                _quietly(sys.executable, "-m", "venv", str(venv))
                _quietly(str(venv / "bin" / "pip"), "install", "--quiet", AIPERF)
            _quietly(str(venv / "bin" / "python"), "-c", _TOKENIZER, str(made.home))
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
            return None, said[-1] if said else str(error)
        return made, ""

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        command = [
            str(self.venv / "bin" / "aiperf"),
            "profile",
            "--model",
            MODEL,
            "--url",
            url.removesuffix("/v1"),
        ]
        command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--per-chunk-usage"]
        command += ["--tokenizer", "known/schedule", "--input-file", str(self.prompts)]
        command += ["--custom-dataset-type", "single_turn", "--request-count", str(requests)]
        command += ["--concurrency", str(concurrency), "--extra-inputs", f"max_tokens:{tokens}"]
        command += ["--artifact-dir", str(out), "--export-level", "records", "--ui", "none"]
        command += ["--no-gpu-telemetry", "--no-server-metrics"]
        environment = {**os.environ, "HF_HOME": str(self.home), "HF_HUB_OFFLINE": "1"}
        used = process_tree.run(command, output=out.with_suffix(".out"), environment=environment)
        records = map(json.loads, (out / "profile_export.jsonl").read_text().splitlines())
        return [_aiperf(record) for record in records], used


_TOKENIZER = """
import pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({"<unk>": 0, "Count": 1}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
repository = pathlib.Path(sys.argv[1], "hub", "models--known--schedule")
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(repository / "snapshots" / ("0" * 40))
(repository / "refs").mkdir(exist_ok=True)
(repository / "refs" / "main").write_text("0" * 40)
"""
"""Puts a tokenizer of one word where Hugging Face's cache would have it."""


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _bare(record: dict[str, Any]) -> Found:
    chunk_s, cumulative = record["chunk_s"], record["cumulative"]
    tpot_s = (chunk_s[-1] - chunk_s[0]) / (cumulative[-1] - cumulative[0])
    return Found(record["key"], chunk_s[0], chunk_s[-1], tpot_s)


def _ours(record: dict[str, Any]) -> Found:
    after_first = record["completion_tokens"] - record["chunk_tokens"][0]
    tpot_s = (record["chunk_s"][-1] - record["chunk_s"][0]) / after_first
    return Found(record["nonce"], record["ttft_s"], record["e2e_s"], tpot_s)


def _aiperf(record: dict[str, Any]) -> Found:
    names = ("time_to_first_token", "request_latency", "inter_token_latency")
    ttft_ms, e2e_ms, itl_ms = (record["metrics"][name]["value"] for name in names)
    return Found(record["metadata"]["x_request_id"], ttft_ms / 1000, e2e_ms / 1000, itl_ms / 1000)
