"""What every test may use: the reference experiment, and a way to write a variation of it."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.prices import BLOCK_RATES

# Texts are compared as they are where there is no terminal; the workers of pytest-xdist have a width.
os.environ.pop("COLUMNS", None)
# Before anything starts jsii, whose process keeps the environment of its start. CloudFormation validation triples the time
# of a synth; one test of its own has it on.
os.environ.setdefault("CDK_VALIDATION", "false")
os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "1")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
# Of each region moto makes 1,300 images that nobody asks for, at the beginning and at the end of every test.
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
# A shell's `&` starts what is in the background with SIGINT ignored; servers that tests end by it would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "experiments" / "qwen3-32b.yaml"
NODE_PRICE = BLOCK_RATES["trn2.48xlarge"]
"""Of the reference experiment's node."""
NODE_USD = NODE_PRICE.usd_per_hour


@pytest.fixture(scope="session")
def reference() -> Experiment:
    """The reference experiment, resolved."""
    return load(REFERENCE)


@pytest.fixture(scope="session")
def _reference_data() -> dict[str, Any]:
    """Without the figures that only its own arms and classes can meet."""
    data: dict[str, Any] = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    del data["expect"]
    return data


@pytest.fixture
def variation(
    tmp_path: Path, _reference_data: dict[str, Any]
) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """A copy of the reference file after an edit of its data."""

    def write(edit: Callable[[dict[str, Any]], object]) -> Path:
        data = copy.deepcopy(_reference_data)
        edit(data)
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """AWS on loopback, for clients that take an address."""
    from moto.server import ThreadedMotoServer  # here, since few tests want it and its import is long

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
