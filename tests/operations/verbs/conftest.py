"""A deployed experiment and the verbs that are called on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from experiment import Experiment
from operations.__main__ import main
from operations.aws import Aws
from tests.operations.api_server import ApiServer
from tests.operations.clients import shared_client
from tests.operations.world import World


@pytest.fixture
def world(experiment: Experiment, api: ApiServer, account: None, monkeypatch: pytest.MonkeyPatch) -> World:
    """A deployed experiment, which the verbs find by themselves."""
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    world = World(experiment, api)
    world.deploy()
    return world


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Exit code, stdout and stderr of a verb."""

    def called(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return called
