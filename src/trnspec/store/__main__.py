"""The command line: `python -m trnspec.store VERB`; results on stdout, progress on stderr.

`keep` copies the results of a benchmark to S3 while it runs; `restore` copies them back, so that a new pod continues where a
lost one stopped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import click

from trnspec.core.command_line import SETTINGS, carried_out
from trnspec.core.words import count
from trnspec.store import bucket
from trnspec.store.artifact import check, pull, push, source

PATH: Any = click.Path(path_type=Path)
region_option = click.option("--region", help="AWS region (default: the configured one).")
key_option = click.option("--key", help="Artifact key that the marker must have.")


def _json_object(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON ({error})") from None


@click.group(
    help="Move weights, compiled artifacts and results between Hugging Face, S3 and this disk.",
    epilog="Every command can be repeated. Exit codes: 0 fine, 1 a folder is unfinished or belongs to another arm or model, "
    "2 wrong usage or configuration, 3 Hugging Face, S3 or the disk failed, 130 interrupted.",
    context_settings=dict(SETTINGS),
)
def door() -> None:
    """The group of the verbs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code (see --help)."""
    return carried_out(door, arguments, prog="python -m trnspec.store")


@door.command("fetch")
@click.option("--model", required=True, metavar="ORG/NAME")
@click.option("--revision", metavar="COMMIT", help="Commit of the model (default: the newest).")
@click.option("--from", "folder", metavar="S3", help="Folder in S3 to copy from, instead of Hugging Face.")
@click.option(
    "--expect", callback=_json_object, metavar="JSON", help="Values that its config.json must have."
)
@click.option(
    "--to", required=True, metavar="S3", help="Target, s3://bucket/folder/, of this model and revision."
)
@click.option(
    "--scratch", required=True, type=PATH, metavar="DIR", help="Folder on this disk with space for one file."
)
@click.option("--token-file", type=PATH, metavar="FILE", help="File with a Hugging Face token.")
@region_option
def fetch_verb(
    model: str,
    revision: str | None,
    folder: str | None,
    expect: Any,
    to: str,
    scratch: Path,
    token_file: Path | None,
    region: str | None,
) -> None:
    """Copy weights from Hugging Face, or from a folder in S3, to S3; the marker last."""
    # huggingface_hub takes a second to import, and only this verb needs it
    from trnspec.store.fetch import Folder, Hub, fetch

    hub = Folder(bucket.BucketFolder(folder, region=region)) if folder else Hub(token=_token(token_file))
    commit = fetch(
        model,
        revision,
        hub=hub,
        expected=expect,
        target=bucket.BucketFolder(to, region=region),
        scratch=scratch,
    )
    print(f"{model}: complete at {commit}")


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise bucket.StoreError(f"--token-file {file}: {bucket.one_line(error)}") from None


@door.command("push")
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--to", required=True, metavar="S3")
@click.option("--key", required=True, help="Artifact key of the arm.")
@click.option(
    "--inputs-from",
    required=True,
    metavar="VARIABLE",
    help="Environment variable with the inputs of the key, as JSON.",
)
@click.option(
    "--require",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A file that must exist, or a pattern of which one file must exist.",
)
@click.option(
    "--baseline", metavar="S3", help="Artifact whose compiler configuration is compared with this one."
)
@click.option(
    "--declared",
    default="",
    metavar="A,B",
    help="Keys of the configuration that may differ from the baseline.",
)
@region_option
def push_verb(
    folder: Path,
    to: str,
    key: str,
    inputs_from: str,
    require: tuple[str, ...],
    baseline: str | None,
    declared: str,
    region: str | None,
) -> None:
    """Copy a compiled artifact to S3; the marker last."""
    if (inputs := os.environ.get(inputs_from)) is None:
        why = "the environment variable is not set; set it to the inputs of the key"
        raise bucket.StoreError(f"--inputs-from {inputs_from}: {why}")
    push(
        folder,
        bucket.BucketFolder(to, region=region),
        key=key,
        inputs=inputs,
        required=require,
        baseline=bucket.BucketFolder(baseline, region=region) if baseline else None,
        declared=[name for name in declared.split(",") if name],
    )
    print(f"artifact {key}: complete")


@door.command("pull")
@click.argument("address", metavar="S3|DIR")
@key_option
@click.option("--to", required=True, type=PATH, metavar="DIR")
@region_option
def pull_verb(address: str, key: str | None, to: Path, region: str | None) -> None:
    """Copy a complete folder to this disk."""
    os.umask(0o002)  # a server of another user, in the volume's group, writes and takes locks in the copy
    pull(source(address, region=region), to, key=key)
    print(f"{to}: complete")


@door.command("check")
@click.argument("address", metavar="S3|DIR")
@key_option
@click.option(
    "--note", type=PATH, metavar="FILE", help="Write FILE if the folder is complete; exit 0 in both cases."
)
@region_option
def check_verb(address: str, key: str | None, note: Path | None, region: str | None) -> None:
    """Check that a folder is complete; exit 1 if it is not."""
    folder = source(address, region=region)
    try:
        files = check(folder, key=key)
    except bucket.Incomplete as error:
        if note is None:
            raise
        bucket.report(str(error))
        return
    if note is not None:
        note.write_text("complete\n", encoding="utf-8")
    size_gb = sum(file.size for file in files) / 1e9
    print(f"{folder.address}: complete, {count(len(files), 'file')}, {size_gb:.2f} GB")


@door.command("keep")
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--to", required=True, metavar="S3")
@click.option(
    "--every", "every_s", type=float, default=60, metavar="S", help="Seconds between copies (default 60)."
)
@region_option
def keep_verb(folder: Path, to: str, every_s: float, region: str | None) -> None:
    """Copy the changed files of a results folder to S3, again and again until SIGTERM."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    keep(folder, bucket.BucketFolder(to, region=region), every_s=every_s, stop=stop)


def keep(folder: Path, target: bucket.BucketFolder, *, every_s: float, stop: Event) -> None:
    """Copy changed files until `stop`, and a last time then. A file that S3 refuses is tried again in the next round."""
    known: dict[str, tuple[int, int]] = {}
    while True:
        last = stop.is_set()
        try:
            keep_once(folder, target, known)
        except bucket.Unreachable as error:
            if last:
                raise
            bucket.report(str(error))
        if last:
            return
        stop.wait(every_s)


def keep_once(folder: Path, target: bucket.BucketFolder, known: dict[str, tuple[int, int]]) -> None:
    """Copy the files whose size or time of change is not the `known` one, and update `known`."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            name, found = path.relative_to(folder).as_posix(), path.stat()
            if known.get(name) != (now := (found.st_size, found.st_mtime_ns)):
                target.upload(path, name)
                known[name] = now
                bucket.report(f"{name}: copied to S3, {count(found.st_size, 'byte')}")
        except FileNotFoundError:
            continue  # a temporary file of the benchmark that was renamed in between


@door.command("get")
@click.argument("address", metavar="S3")
@click.option("--sha256", "digest", required=True, metavar="HASH")
@click.option("--to", required=True, type=PATH, metavar="FILE")
@region_option
def get_verb(address: str, digest: str, to: Path, region: str | None) -> None:
    """Copy one file, s3://bucket/folder/name, to this disk if it has this hash."""
    folder, _, name = address.rpartition("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    bucket.BucketFolder(folder, region=region).download(name, to)
    if (found := bucket.sha256(to)) != digest:
        to.unlink()
        raise bucket.Incomplete(f"{address}: has the hash {found}, not {digest}; store the file again")
    print(f"{to}: {to.stat().st_size} bytes")


@door.command("restore")
@click.argument("address", metavar="S3")
@click.option("--to", required=True, type=PATH, metavar="DIR")
@region_option
def restore_verb(address: str, to: Path, region: str | None) -> None:
    """Copy the files that `keep` stored back to this disk."""
    files = restore(bucket.BucketFolder(address, region=region), to)
    print(f"{to}: {count(files, 'file')} copied back")


def restore(source: bucket.BucketFolder, folder: Path) -> int:
    """Copy back the files that the folder does not have, and return their number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: bucket.inside(folder, name, source.address) for name in sorted(source.sizes())}
    missing = {name: path for name, path in paths.items() if not path.exists()}
    for name, path in missing.items():
        source.download(name, path)
        bucket.report(f"{name}: copied back")
    return len(missing)


if __name__ == "__main__":
    sys.exit(main())
