from __future__ import annotations

import pytest
import yaml

from experiment.finding import Misuse
from operations.promoting.section import serve_of, with_serve
from tests.conftest import REFERENCE

TEXT = REFERENCE.read_text(encoding="utf-8")
SECTION = {"arm": "qwen-sd-vllm", "replicas": 2}
ARN = "arn:aws:acm:us-east-2:123456789012:certificate/0a1b"


def test_a_new_section_stands_at_the_end_and_nothing_else_changes() -> None:
    edited = with_serve(TEXT, SECTION)
    assert edited.startswith(TEXT.rstrip("\n"))
    assert edited.endswith("\nserve:\n  arm: qwen-sd-vllm\n  replicas: 2\n")


def test_a_section_in_the_middle_is_edited_in_place_and_comments_stay() -> None:
    before = (
        "name: x  # why x\n"
        "serve:  # since March\n"
        "  # the cheaper one\n"
        "  arm: a   # was b\n"
        "  client_cidrs:\n"
        "    - 10.0.0.0/16\n"
        "\n"
        "# of the cluster\n"
        "cluster: {region: r}\n"
    )
    edited = with_serve(before, {"arm": "b", "client_cidrs": ["10.1.0.0/16"], "replicas": 1})
    assert edited == (
        "name: x  # why x\n"
        "serve:  # since March\n"
        "  # the cheaper one\n"
        "  arm: b   # was b\n"
        '  client_cidrs: ["10.1.0.0/16"]\n'
        "  replicas: 1\n"
        "\n"
        "# of the cluster\n"
        "cluster: {region: r}\n"
    )


@pytest.mark.parametrize(
    "before",
    ["name: x\nserve: {arm: a}", "serve: {arm: a,\n  replicas: 3}\nname: x\n", "name: x\nserve:\n\nz: 1\n"],
)
def test_other_ways_to_write_it_become_a_block(before: str) -> None:
    edited = with_serve(before, SECTION)
    assert serve_of(edited) == SECTION
    assert yaml.safe_load(edited)["name"] == "x" if "name" in before else True


@pytest.mark.parametrize("value", ["on", "1", "null", ARN, "a: b", "10.20.0.0/16"])
def test_a_text_stays_a_text(value: str) -> None:
    assert serve_of(with_serve(TEXT, {"arm": value, "client_cidrs": [value]})) == {
        "arm": value,
        "client_cidrs": [value],
    }


def test_editing_twice_is_editing_once() -> None:
    once = with_serve(TEXT, SECTION)
    assert with_serve(once, SECTION) == once


@pytest.mark.parametrize(
    "before", ["name: x\n...\n", "{name: x, serve: {arm: a}}\n", "serve: &s {arm: a}\nb: *s\n"]
)
def test_what_an_edit_would_spoil_is_refused_in_one_line(before: str) -> None:
    with pytest.raises(Misuse, match=r"^serve: .* or by hand$"):
        with_serve(before, SECTION)
