"""Every experiment with its objects, as they are committed."""

from __future__ import annotations

import pytest

from tests.cdk8s_charts.objects import RENDERED, Case, committed, experiment_at


@pytest.fixture(params=RENDERED, ids=lambda path: path.stem)
def case(request: pytest.FixtureRequest) -> Case:
    return experiment_at(request.param), list(committed(request.param))
