from __future__ import annotations

from typing import Any

import pytest

from lab.aws.rehearsal import not_as_reviewed

REVIEWED: dict[str, Any] = {
    "kind": "Job",
    "metadata": {"name": "fetch", "namespace": "n"},
    "spec": {"image": "${AWS_ACCOUNT}.dkr.ecr/x:${TAG}", "replicas": 1, "args": ["a", "b"], "on": True},
}


def changed(**spec: Any) -> dict[str, Any]:
    filled = {"image": "123456789012.dkr.ecr/x:abc"}
    return {**REVIEWED, "spec": {**REVIEWED["spec"], **filled, **spec}}


def test_placeholders_stand_for_any_text() -> None:
    assert not_as_reviewed([REVIEWED], [changed()]) == ()


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"replicas": 2}, "Job n/fetch spec.replicas: 1 became 2"),
        ({"args": ["a", "c"]}, "Job n/fetch spec.args[1]: 'b' became 'c'"),
        ({"args": ["a"]}, "Job n/fetch spec.args[1]: 'b' became absent"),
        ({"on": 1}, "Job n/fetch spec.on: True became 1"),
        (
            {"image": ".dkr.ecr/x:abc"},
            "Job n/fetch spec.image: '${AWS_ACCOUNT}.dkr.ecr/x:${TAG}' became '.dkr.ecr/x:abc'",
        ),
        (
            {"image": "1.dkr.ecr/x:${TAG}"},
            "Job n/fetch spec.image: '${AWS_ACCOUNT}.dkr.ecr/x:${TAG}' became '1.dkr.ecr/x:${TAG}'",
        ),
    ],
)
def test_anything_else_is_a_difference(spec: dict[str, Any], line: str) -> None:
    assert not_as_reviewed([REVIEWED], [changed(**spec)]) == (line,)


def test_a_placeholder_in_a_name_stands_for_any_text_too() -> None:
    named = {**REVIEWED, "metadata": {"name": "fetch-0a1b2c3d-${BENCHMARK_IMAGE_TAG}", "namespace": "n"}}
    other = {**REVIEWED, "metadata": {"name": "fetch-4e5f6a7b-${BENCHMARK_IMAGE_TAG}", "namespace": "n"}}
    applied = [
        {**changed(), "metadata": {"name": f"fetch-{content}-99999999", "namespace": "n"}}
        for content in ("4e5f6a7b", "0a1b2c3d")
    ]
    assert not_as_reviewed([named, other], applied) == ()
    (missing,) = not_as_reviewed([named, other], applied[:1])
    assert missing == "Job n/fetch-0a1b2c3d-${BENCHMARK_IMAGE_TAG}: reviewed, not applied"


def test_an_object_more_or_less_is_a_difference() -> None:
    other = {"kind": "Namespace", "metadata": {"name": "m"}}
    assert not_as_reviewed([REVIEWED], [changed(), other]) == ("Namespace m: applied, not reviewed",)
    assert not_as_reviewed([REVIEWED, other], [changed()]) == ("Namespace m: reviewed, not applied",)
