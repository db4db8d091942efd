"""Every experiment with its objects."""

from __future__ import annotations

import pytest

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.render import render
from experiment import Experiment
from tests.cdk8s_charts.objects import RENDERED, Object, committed, experiment_at

Case = tuple[Experiment, list[Object]]


@pytest.fixture(params=RENDERED, ids=lambda path: path.stem)
def case(request: pytest.FixtureRequest) -> Case:
    """Each experiment with its objects."""
    return experiment_at(request.param), list(committed(request.param))


@pytest.fixture(scope="session")
def files(reference: Experiment) -> tuple[ManifestFile, ...]:
    """Files of the reference experiment, rendered now."""
    return render(reference)


def objects_in(files: tuple[ManifestFile, ...]) -> list[Object]:
    return [item for file in files for item in file.objects]
