"""Find in a log why an installation by pip or npm failed. The cause is seldom on the last line.

`python core/install_failure.py LOG` needs no package, because it runs when nothing could be installed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_CAUSES = (
    (r"No space left on device|ENOSPC|Disk quota exceeded", "no space is left; free some"),
    (
        r"DO NOT MATCH THE HASHES|EINTEGRITY",
        "a package has another hash than the lock file names, so a mirror or a proxy changed it; use an index that serves the original",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SELF_SIGNED_CERT|UNABLE_TO_GET_ISSUER",
        "no connection to {where}: its certificate is not trusted; name your proxy's with PIP_CERT and NODE_EXTRA_CA_CERTS",
    ),
    (
        r"NewConnectionError|ConnectTimeout|ReadTimeout|ConnectionResetError|RemoteDisconnected|ProxyError|NameResolutionError|"
        r"Failed to establish a new connection|ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ERR_SOCKET_TIMEOUT|ENETUNREACH",
        "no connection to {where}; check the network, or name a proxy with HTTPS_PROXY",
    ),
    (
        r"\b40[137]\b.*(Client Error|Unauthorized|Forbidden|Proxy)",
        "{where} refuses access; check the address and your rights there",
    ),
    (
        r"from versions: none",
        "{where} has no version of a package, or was not reached; check the network, and that this index is complete",
    ),
    (
        r"No matching distribution|ETARGET|is not in this registry",
        "a package of the lock file does not exist for this Python at {where}; use a complete index, or Python 3.11 or 3.12",
    ),
)
_ADDRESS = re.compile(r"host='([^']+)', port=(\d+)|https?://(?:[^/@\s]*@)?([^/\s'\"]+)")


def cause(log: str) -> str:
    """Return one line: what is wrong and what to do, or the last error of the log if the cause is not known."""
    for pattern, text in _CAUSES:
        if match := re.search(pattern, log):
            line = log[log.rfind("\n", 0, match.start()) + 1 : (log + "\n").index("\n", match.end())]
            return text.format(where=_where(line) or _where(log) or "PyPI")
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nothing was said"]
    return next((line for line in reversed(lines) if re.search("error", line, re.IGNORECASE)), lines[-1])[
        :300
    ]


def _where(text: str) -> str:
    match = _ADDRESS.search(text)
    return (match[3] or f"{match[1]}:{match[2]}").removesuffix(":443") if match else ""


if __name__ == "__main__":
    print(cause(Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace")))
