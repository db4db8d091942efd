"""moto's server on loopback, and clients that can reach nothing else.

Nothing here reads or writes the caller's environment, profile or credentials: a client is made for one address, with
made-up keys, without proxies. moto keeps its state in this process, so only one server may run at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from moto.moto_api._internal.models import moto_api_backend
from moto.server import ThreadedMotoServer

from trnspec.lab.aws.moto_models import extended_moto

_MADE_UP_KEY = "rehearsal"


@contextmanager
def rehearsal_server() -> Iterator[str]:
    """Start an empty AWS on loopback, and yield its address, e.g. `http://localhost:41234`.

    The name, not 127.0.0.1: moto takes a template's URL apart by host name.
    """
    requests = logging.getLogger("werkzeug")
    level = requests.level
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def client_of(service: str, region: str) -> Any:
        return client(service, endpoint=address, region=region)

    try:
        requests.setLevel(logging.ERROR)
        with extended_moto(client_of):
            moto_api_backend.reset()
            server.start()
            address = f"http://localhost:{server.get_host_and_port()[1]}"
            try:
                yield address
            finally:
                server.stop()
    finally:
        moto_api_backend.reset()
        requests.setLevel(level)


@lru_cache(64)
def client(service: str, *, endpoint: str, region: str) -> Any:
    """Return a boto3 client that reaches only this server. The caller's environment does not matter."""
    return _session().client(
        service,
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=_MADE_UP_KEY,
        aws_secret_access_key=_MADE_UP_KEY,
        # moto answers CreateStack once every resource is made: minutes, on a machine that does other things too.
        config=Config(proxies={}, retries={"total_max_attempts": 1}, read_timeout=600),
    )


@cache
def _session() -> boto3.Session:
    """Without the user's files and profile; shared, because reading the service models takes most of a client's time."""
    session = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
    session.set_config_variable("config_file", os.devnull)
    session.set_config_variable("credentials_file", os.devnull)
    return boto3.Session(botocore_session=session)


def child_environment(*, endpoint: str, region: str) -> dict[str, str]:
    """Return this process's environment with what a child process needs to reach the server, and without any other AWS setting
    (profile, token, endpoint of one service)."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": _MADE_UP_KEY,
        "AWS_SECRET_ACCESS_KEY": _MADE_UP_KEY,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "localhost,127.0.0.1",
        "no_proxy": "localhost,127.0.0.1",
    }
