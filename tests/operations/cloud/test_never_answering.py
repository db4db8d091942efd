"""An endpoint that takes every connection and says nothing, and a plugin that does not open its session."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from core.findings import Outside
from experiment import Experiment
from operations.cloud import access, clock, nodegroup
from tests.operations.cloud.test_access import HOST, Account, plugin
from tests.operations.conftest import Say

HANGS = "#!/bin/sh\nexec sleep 600\n"
TALKS = '#!/bin/sh\necho "Waiting for connections..."\nyes "Connection accepted" | head -n 20000\ntouch "$0.done"\nexec sleep 600\n'


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch, credentials: None) -> Iterator[list[float]]:
    """How many seconds were left when a request came; from then on none are."""
    left_s: list[float] = []

    def listen() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(1)
            left_s.append(signal.getitimer(signal.ITIMER_REAL)[0])
            if left_s[0]:
                signal.setitimer(signal.ITIMER_REAL, 0.01, 1.0)
            listening.accept()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=listen, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield left_s
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("more", [(), ("--json",), ("--account", "123456789012")])
def test_the_emergency_stop_says_what_it_waits_for_and_ends_when_the_time_is_over(
    more: tuple[str, ...], silence: list[float], say: Say
) -> None:
    code, out, err = say("scale", "0", *more)
    assert 0 < silence[0] <= nodegroup.LIMIT_S == 45
    assert (code, out.startswith('{\n  "problems"')) == (3, "--json" in more)
    first, last = err.splitlines()
    assert first == "trnspec scale: asks EKS in us-east-2 for 0 nodes of qwen3-32b, 45 s at most"
    assert "EKS in us-east-2 did not answer within 45 s, so nodes may still bill" in last


def test_a_limit_that_was_dropped_in_a_destructor_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped_once() -> None:
        with suppress(clock.TooLateError):  # as Python does there
            time.sleep(30)
        time.sleep(30)

    monkeypatch.setattr(clock, "AGAIN_S", 0.2)
    with pytest.raises(clock.TooLateError), clock.within(0.05):
        dropped_once()


def test_a_plugin_that_never_opens_its_session_is_one_line(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    monkeypatch.setattr(access, "OPENS_S", 0.5)
    plugin(tmp_path, HANGS, monkeypatch)
    with (
        pytest.raises(Outside, match=r"did not open .it said nothing.; install version 1\.2\.498\.0"),
        access.into(experiment, Account(online=True).aws(), host=HOST),
    ):
        pass


def test_a_plugin_that_talks_for_hours_is_listened_to(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    """A line for each connection fills the pipe of one that nobody reads, and the tunnel stands still."""
    plugin(tmp_path, TALKS, monkeypatch)
    with access.into(experiment, Account(online=True).aws(), host=HOST):
        end = time.monotonic() + 30
        while not (tmp_path / f"{access.PLUGIN}.done").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
