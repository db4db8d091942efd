"""Copying a results folder to S3, so that it outlives the pod. Whole files, so a repeated copy is harmless."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmark.errors import PlanError, PublishError

KEPT = (
    "requests.jsonl",
    "divergence.jsonl",
    "sense.jsonl",
    "summary.json",
    "plan.json",
    "plan-as-run.json",
    "report.html",
    "*.csv",
    "llmperf/**/*.json",
)
"""What is copied where it exists; the ledger of publications belongs to the folder and stays."""


def upload(
    folder: Path, target: str, *, run_id: str, endpoint_url: str | None, region: str | None
) -> list[str]:
    """Copy the files of `folder` under `target` (`s3://bucket/prefix/`) and the run's id; returns their addresses.

    Raises PlanError for a target that is not such an address, PublishError where S3 does not take a file.
    """
    import boto3
    from boto3.exceptions import S3UploadFailedError
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    parts = urlsplit(target)
    if parts.scheme != "s3" or not parts.netloc:
        raise PlanError(f"--upload {target!r}: is not an address in S3; use s3://bucket/prefix/")
    prefix = parts.path.lstrip("/")
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    retries: Any = {"mode": "standard", "total_max_attempts": 5}
    written = []
    try:
        client = boto3.client(
            "s3", endpoint_url=endpoint_url, region_name=region, config=Config(retries=retries)
        )
        for path in (path for pattern in KEPT for path in sorted(folder.glob(pattern))):
            key = f"{prefix}{run_id}/{path.relative_to(folder).as_posix()}"
            client.upload_file(str(path), parts.netloc, key)
            written.append(f"s3://{parts.netloc}/{key}")
    except (BotoCoreError, ClientError, S3UploadFailedError, ValueError) as error:
        why = " ".join(str(error).split())
        raise PublishError(f"S3 {target}: {why}; {folder} keeps everything, publish again") from error
    return written
