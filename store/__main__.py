"""The command line: `python -m store VERB`; results on stdout, progress on stderr.

`keep` and `restore`: a benchmark's results folder is copied to S3 while it runs, so that a new pod continues where a lost
one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from core.edge import guarded
from core.words import count
from store.artifact import push
from store.bucket import (
    BucketFolder,
    Incomplete,
    StoredFile,
    StoreError,
    Unreachable,
    described,
    inside,
    one_line,
    sha256,
)
from store.pull import Source, check, pull, source


def restore(source: BucketFolder, folder: Path, report: Callable[[str], None]) -> int:
    """Bring back what an interrupted run left, unless the folder has it; returns the number of files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: inside(folder, name, source.address) for name in sorted(source.sizes())}
    missing = {name: path for name, path in paths.items() if not path.exists()}
    for name, path in missing.items():
        source.download(name, path)
        report(f"{name}: brought back")
    return len(missing)


def keep_once(
    folder: Path, target: BucketFolder, known: dict[str, StoredFile], report: Callable[[str], None]
) -> None:
    """Store what changed since `known`, which is brought up to date."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            file = described(folder, path)
            if known.get(file.path) != file:
                target.upload(path, file)
                known[file.path] = file
                report(f"{file.path}: kept, {count(file.size, 'byte')}")
        except FileNotFoundError:
            continue  # a temporary file of the benchmark that was renamed in between


def keep(
    folder: Path, target: BucketFolder, *, every_s: float, stop: Event, report: Callable[[str], None]
) -> None:
    """Store what changes until `stop`, and once more at the end. What S3 refuses is tried again in the next turn."""
    known: dict[str, StoredFile] = {}
    while True:
        last = stop.is_set()
        try:
            keep_once(folder, target, known, report)
        except Unreachable as error:
            if last:
                raise
            report(str(error))
        if last:
            return
        stop.wait(every_s)


def parser() -> argparse.ArgumentParser:
    """The command line: every verb with its options."""
    top = argparse.ArgumentParser(
        prog="python -m store",
        description="Move weights, compiled artifacts and results between Hugging Face, S3 and this disk.",
        epilog="Every verb may be repeated. Exit codes: 0 fine, 1 a folder is unfinished or belongs to another arm or model, 2 wrong usage or "
        "configuration, 3 Hugging Face, S3 or the disk failed, 130 interrupted.",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    fetch = _verb(verbs, "fetch", "weights from Hugging Face or a folder in S3 into S3, marker last", _fetch)
    fetch.add_argument("--model", required=True, metavar="ORG/NAME")
    fetch.add_argument("--revision", metavar="COMMIT", help="default: the newest, resolved and recorded")
    fetch.add_argument("--from", dest="folder", metavar="S3", help="take it from s3://bucket/folder/ instead")
    fetch.add_argument("--expect", type=json.loads, metavar="JSON", help="what its config.json says")
    fetch.add_argument(
        "--to", required=True, metavar="S3", help="s3://bucket/folder/ of this model and revision"
    )
    fetch.add_argument("--scratch", required=True, type=Path, metavar="DIR", help="room for one file")
    fetch.add_argument("--token-file", type=Path, metavar="FILE", help="default: no token")
    push = _verb(verbs, "push", "a compiled artifact into S3, marker last", _push)
    push.add_argument("folder", type=Path, metavar="DIR")
    push.add_argument("--to", required=True, metavar="S3")
    push.add_argument("--key", required=True, help="artifact key of the arm")
    push.add_argument(
        "--inputs-from", required=True, metavar="VARIABLE", help="holds what the key is computed from, JSON"
    )
    push.add_argument(
        "--require", action="append", default=[], metavar="NAME", help="file that must be there"
    )
    push.add_argument(
        "--baseline", metavar="S3", help="compare the compiler's configuration with this artifact's"
    )
    push.add_argument(
        "--declared", default="", metavar="A,B", help="keys that may differ from the baseline's"
    )
    pull = _verb(verbs, "pull", "a finished folder onto this disk", _pull)
    check = _verb(verbs, "check", "exit 1 unless a folder is finished and whole", _check)
    for verb in (pull, check):
        verb.add_argument("source", metavar="S3|DIR")
        verb.add_argument("--key", help="artifact key that the marker must carry")
    pull.add_argument("--to", required=True, type=Path, metavar="DIR")
    check.add_argument("--note", type=Path, metavar="FILE", help="write FILE if finished, exit 0 either way")
    keep = _verb(verbs, "keep", "store a results folder again and again until SIGTERM, or once", _keep)
    keep.add_argument("folder", type=Path, metavar="DIR")
    keep.add_argument("--to", required=True, metavar="S3")
    keep.add_argument("--every", type=float, default=60, metavar="S")
    keep.add_argument("--once", action="store_true", help="store what is there and end")
    get = _verb(verbs, "get", "one file, if it has the hash that is asked for", _get)
    get.add_argument("source", metavar="S3", help="s3://bucket/folder/name")
    get.add_argument("--sha256", required=True, metavar="HASH")
    get.add_argument("--to", required=True, type=Path, metavar="FILE")
    restore = _verb(verbs, "restore", "bring back what `keep` stored", _restore)
    restore.add_argument("source", metavar="S3")
    restore.add_argument("--to", required=True, type=Path, metavar="DIR")
    return top


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, action: object
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=about, description=about)
    parser.add_argument("--region", help="instead of the configured one")
    parser.set_defaults(action=action)
    return parser


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _bucket(options: argparse.Namespace, address: str) -> BucketFolder:
    return BucketFolder(address, region=options.region)


def _source(options: argparse.Namespace) -> Source:
    return source(options.source, region=options.region)


def _fetch(options: argparse.Namespace) -> int:
    # huggingface_hub takes a second to import, and only this verb needs it
    from store.fetch import Folder, Hub, fetch

    revision = fetch(
        options.model,
        options.revision,
        hub=Folder(_bucket(options, options.folder))
        if options.folder
        else Hub(token=_token(options.token_file)),
        expected=options.expect,
        target=_bucket(options, options.to),
        scratch=options.scratch,
        report=_report,
    )
    print(f"{options.model}: complete at {revision}")
    return 0


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"--token-file {file}: {one_line(error)}") from None


def _push(options: argparse.Namespace) -> int:
    push(
        options.folder,
        _bucket(options, options.to),
        key=options.key,
        inputs=os.environ[options.inputs_from],
        required=options.require,
        baseline=_bucket(options, options.baseline) if options.baseline else None,
        declared=[name for name in options.declared.split(",") if name],
        report=_report,
    )
    print(f"artifact {options.key}: complete")
    return 0


def _pull(options: argparse.Namespace) -> int:
    os.umask(0o002)  # a server of another user, in the volume's group, writes and takes locks in the copy
    pull(_source(options), options.to, key=options.key, report=_report)
    print(f"{options.to}: complete")
    return 0


def _check(options: argparse.Namespace) -> int:
    folder = _source(options)
    try:
        files = check(folder, key=options.key)
    except Incomplete as error:
        if options.note is None:
            raise
        _report(str(error))
        return 0
    if options.note is not None:
        options.note.write_text("complete\n", encoding="utf-8")
    print(
        f"{folder.address}: complete, {count(len(files), 'file')}, {sum(file.size for file in files) / 1e9:.2f} GB"
    )
    return 0


def _keep(options: argparse.Namespace) -> int:
    stop = Event()
    if options.once:
        stop.set()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    keep(options.folder, _bucket(options, options.to), every_s=options.every, stop=stop, report=_report)
    return 0


def _restore(options: argparse.Namespace) -> int:
    files = restore(_bucket(options, options.source), options.to, _report)
    print(f"{options.to}: {count(files, 'file') + ' brought back' if files else 'nothing to bring back'}")
    return 0


def _get(options: argparse.Namespace) -> int:
    folder, _, name = options.source.rpartition("/")
    options.to.parent.mkdir(parents=True, exist_ok=True)
    _bucket(options, folder).download(name, options.to)
    if sha256(options.to) != options.sha256:
        options.to.unlink()
        raise Incomplete(f"{options.source}: is not the file with hash {options.sha256}; store it again")
    print(f"{options.to}: {options.to.stat().st_size} bytes")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    return guarded("store", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except StoreError as error:
        print(f"store {options.verb}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        said = f"{one_line(error)}; make room or fix permissions, then repeat"
        print(f"store {options.verb}: {said}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
