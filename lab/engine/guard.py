"""`python -m lab.engine.guard COMMAND...`: run COMMAND until it ends, or until whoever started this is gone.

Standard input is a pipe that only the starter holds. Its end means that the starter has ended, be it by a crash
or by force; then the whole process group goes, so that no server outlives the lab.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE_S = 10


def main(argv: list[str]) -> int:
    """The command's own exit code."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: _terminate(child))
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _terminate(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        child.terminate()


def _watch(child: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _terminate(child)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=GRACE_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
