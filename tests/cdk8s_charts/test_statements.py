"""Every statement holds for what is committed and for what the core accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cdk8s_charts.generated import WANTED, generated
from tests.cdk8s_charts.objects import RENDERED, experiment_at, objects_of
from tests.cdk8s_charts.statements import STATEMENTS, Statement


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_a_statement_holds_for_what_is_committed(path: Path, statement: Statement) -> None:
    assert list(statement(experiment_at(path), objects_of(path))) == []


@pytest.mark.parametrize("number", range(WANTED))
def test_every_statement_holds_for_whatever_the_core_accepts(number: int) -> None:
    experiment, objects = generated()[number]
    assert [broken for statement in STATEMENTS for broken in statement(experiment, list(objects))] == []
