"""The reference experiment as it is and after an edit, rendered for real."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.render import render
from trnspec.experiment import Experiment, load
from trnspec.operations.review.effects import FileState

Edit = Callable[[dict[str, Any]], object]
Edited = Callable[[Edit], FileState]


def state_of(experiment: Experiment) -> FileState:
    """A tree that has this experiment alone, freshly rendered."""
    files = {experiment.name: render(experiment)}
    found = {experiment.name: experiment}
    return FileState(tree=Path(), experiments=found, manifests=files, deployment="")


def copied(state: FileState) -> FileState:
    """With objects of its own, to be edited."""
    files = {
        name: tuple(
            replace(file, objects=tuple(copy.deepcopy(dict(item)) for item in file.objects)) for file in those
        )
        for name, those in state.manifests.items()
    }
    return replace(state, manifests=files)


@pytest.fixture(scope="session")
def base(reference: Experiment) -> FileState:
    return state_of(reference)


@pytest.fixture
def head(base: FileState) -> FileState:
    """The same, to be edited into what is compared with it."""
    return copied(base)


@pytest.fixture
def edited(variation: Callable[[Edit], Path]) -> Edited:
    """The reference experiment after an edit of its file, loaded and rendered."""
    return lambda edit: state_of(load(variation(edit)))
