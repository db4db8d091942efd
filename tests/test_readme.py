"""The README against the code: commands exist, the output it shows is what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cdk8s_charts.objects import objects_of
from tests.conftest import REFERENCE, ROOT
from tests.docs.blocks import between
from trnspec.experiment import Experiment, InvalidExperiment, load
from trnspec.experiment.cost import idle, per_hour, run_hours
from trnspec.experiment.run_price import file_prices, price_text

README = (ROOT / "README.md").read_text(encoding="utf-8")
MISTAKES = (
    ("temperature: 0 ", "temperature: 0.7 "),
    ('kubernetes: "1.35"', 'kubernetes: "1.34"'),
)


def shown_as(name: str) -> str:
    """The output between the two marks of a name."""
    return between(ROOT / "README.md", name).removeprefix("```\n").removesuffix("```\n")


def test_the_refusals_shown_are_those_printed(tmp_path: Path) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for right, wrong in MISTAKES:
        assert right in text
        text = text.replace(right, wrong)
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    assert shown_as("refusal") == str(caught.value).replace(str(path), "experiments/qwen3-mine.yaml") + "\n"


def masked(text: str) -> list[str]:
    """What a demonstration printed, from its first stage on, without what differs from run to run: times, folder, figures of
    the answer, which published figures were met, warnings about a busy machine. `.ci/run` compares a fresh one with the README's."""
    text = re.sub(r"(?m)^(Report +)\S+/report\.html$", r"\1REPORT", text[text.index("checked ") :])
    left_out = ("! ", "Published figures")
    blocks = [block for block in text.split("\n\n") if not block.lstrip("\n").startswith(left_out)]
    lines = re.sub(r"\n (?=\S)", " ", "\n\n".join(blocks)).splitlines()  # a paragraph may break elsewhere
    stages = [re.sub(r" +\d+ s$", "", line) for line in lines if re.search(r" \d+ s$", line)]
    # How many are in flight while a set of the run begins and ends depends on the machine.
    stages = [re.sub(r"\(\d+ sent\)", "(N sent)", line) for line in stages]
    rest = [re.sub(r"\d[\d.,]*", "N", line) for line in lines if not re.search(r" \d+ s$", line)]
    # Of the sentence only its arms: open-ended prompts are near the edge of what counts as slower.
    rest = [
        " ".join(sorted({"EMULATED", *re.findall("qwen-[a-z-]+", line)})) if "EMULATED" in line else line
        for line in rest
    ]
    edge = re.compile("(a little )?slower|cannot tell")
    rest = [edge.sub("VERDICT", line) if line.startswith("open-ended") else line for line in rest]
    return [" ".join(re.sub(r"-{3,}", "---", line).split()) for line in (*stages, *rest) if line]


def test_the_demo_shown_ends_with_an_answer_for_each_class_and_what_comes_next() -> None:
    shown = shown_as("demo")
    assert "EMULATED" in shown
    for class_name in load(REFERENCE).classes:
        assert re.search(rf"^{class_name} ", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 100
    assert len(shown.splitlines()) <= 37
    assert re.search(r"^Next +\./trnspec new mine", shown, re.MULTILINE)


def test_the_demo_shown_counts_what_is_committed_and_its_price(reference: Experiment) -> None:
    """Every other count of it is compared with a fresh demonstration by `.ci/run`."""
    shown, price = shown_as("demo"), run_hours(reference)
    assert f"rendered {len(objects_of(REFERENCE))} Kubernetes objects" in shown
    ways = file_prices(reference, price)
    dated = f"{price:.1f} predicted Trn2 hours, rates of {max(way.rate.as_of for way in ways)}"
    text = f"{dated}: {price_text(ways)}"
    assert text in " ".join(shown.split())
    first_screen = " ".join(README.split("\n## ")[0].split())
    (block,) = ways
    asked = (
        f"({price:.1f} hours of a {reference.instance.name}) ${block.usd:.0f} by the smallest Capacity Block"
    )
    assert asked in first_screen
    assert f"about ${per_hour(idle(reference)):.2f} an hour" in first_screen
    small = load(REFERENCE.with_name("llama-3.1-8b-eagle3.yaml"))
    least = price_text(file_prices(small, run_hours(small)))
    assert f"{least.split(' in ')[0]} with one chip an arm" in first_screen
    assert len(README.split()) <= 930


def test_only_what_differs_from_run_to_run_is_masked() -> None:
    shown = shown_as("demo")
    other = re.sub(r"\d+ s$", "99 s", shown, flags=re.MULTILINE).replace("[2", "[1")
    assert masked(f"==> set up\n{other}\n\n! the client was late\n") == masked(shown)
    assert masked(re.sub(r"\d+ resources created", "104 resources created", shown)) != masked(shown)
    assert masked(shown.replace("a little slower", "faster")) != masked(shown)
