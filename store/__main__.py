"""The command line: `python -m store VERB`; results on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from store import commands
from store.errors import StoreError, one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except StoreError as error:
        print(f"store {options.verb}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(
            f"store {options.verb}: {one_line(error)}; make room or fix permissions, then repeat",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m store",
        description="Move weights, compiled artifacts and results between Hugging Face, S3 and this disk.",
        epilog="Every verb may be repeated. Exit codes: 0 fine, 1 a folder is unfinished or another's, 2 wrong usage or "
        "configuration, 3 Hugging Face, S3 or the disk failed, 130 interrupted.",
    )
    commands.add(top.add_subparsers(dest="verb", required=True, metavar="VERB"))
    return top


if __name__ == "__main__":
    sys.exit(main())
