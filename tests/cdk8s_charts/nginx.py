"""A real nginx on loopback that passes every request on to one server."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from urllib.request import urlopen

import pytest

needs_nginx = pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx: apt-get install nginx-light")
_CONFIGURATION = """\
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    server {{
        listen 127.0.0.1:{own};
        location = /ready {{ return 200; }}
        location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_http_version 1.1;
            proxy_buffering {buffering};
        }}
    }}
}}
"""


@contextmanager
def proxied(port: int, folder: Path, *, buffering: bool = False) -> Iterator[str]:
    """The URL of an nginx in front of a server's `port`; with `buffering` it holds parts of an answer back, as it does by default."""
    with socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        own = chosen.getsockname()[1]
    words = {"folder": folder, "own": own, "port": port, "buffering": "on" if buffering else "off"}
    file = folder / "nginx.conf"
    file.write_text(_CONFIGURATION.format(**words), encoding="utf-8")
    # Root's workers would otherwise be of a user who may not write into the folder of a test.
    how = "daemon off;" + (" user root;" if os.geteuid() == 0 else "")
    url = f"http://127.0.0.1:{own}"
    with subprocess.Popen(
        ["nginx", "-e", "stderr", "-c", file, "-g", how], stderr=subprocess.PIPE
    ) as process:
        try:
            for _ in range(500):
                try:
                    urlopen(f"{url}/ready", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.02)
            yield url
        finally:
            process.terminate()
