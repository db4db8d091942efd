"""`python -m trnspec.lab.guard COMMAND...`: run COMMAND until it ends, or until the process that started this has ended.

Standard input is a pipe that only the starter holds. Its end means that the starter has ended, also by a crash
or by force; then the whole process group is ended, so that no server outlives the lab.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 10


def main(argv: list[str]) -> int:
    """Run the command and return its exit code; 127 if it cannot be started."""
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(
            f"Error: {argv[0]} cannot be started ({error.strerror}); check that it is installed", flush=True
        )
        return 127
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    abandoned = threading.Event()
    threading.Thread(target=_watch, args=(child, abandoned), daemon=True).start()
    code = child.wait()
    if abandoned.is_set():
        _kill_group()
    return code if code >= 0 else 128 - code


def _watch(child: subprocess.Popen[bytes], abandoned: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    abandoned.set()
    child.terminate()
    time.sleep(GRACE_S)
    _kill_group()


def _kill_group() -> None:
    """End everything that the command started, because it may outlive the command; then end the guard."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
