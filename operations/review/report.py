"""Two snapshots compared: everything that a reviewer is told, before it is worded. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cdk8s_charts.manifest_file import ManifestFile
from operations.review import notes
from operations.review import objects as kubernetes
from operations.review.access import template_grants
from operations.review.arms import ArmReview, review_arms
from operations.review.changes import changes
from operations.review.cluster_rights import object_grants
from operations.review.notes import Note

PIPELINE = "pipeline"
"""What the review of the delivery itself is called."""


@dataclass(frozen=True)
class ExperimentReview:
    """One experiment that differs in anything."""

    name: str
    arms: tuple[ArmReview, ...]
    notes: tuple[Note, ...]

    @property
    def needs_human(self) -> bool:
        return any(row.needs_human for row in self.arms) or any(note.needs_human for note in self.notes)


@dataclass(frozen=True)
class Diff:
    """A file or a template, as unified diff."""

    title: str
    text: str


@dataclass(frozen=True)
class Review:
    """All of it."""

    experiments: tuple[ExperimentReview, ...]
    granted: tuple[str, ...]
    withdrawn: tuple[str, ...]
    diffs: tuple[Diff, ...]

    @property
    def needs_human(self) -> bool:
        """Whether nobody should merge this unread."""
        return bool(self.granted or self.withdrawn) or any(
            experiment.needs_human for experiment in self.experiments
        )


def compare(base: Mapping[str, Any], head: Mapping[str, Any]) -> Review:
    """What `head` does to somebody who deployed `base`; both are snapshots without problems."""
    objects = [
        {key: item for files in state["objects"].values() for key, item in kubernetes.by_key(files).items()}
        for state in (base, head)
    ]
    both = (base["templates"], head["templates"])
    delivery = (base["delivery"], head["delivery"])
    grants = [
        template_grants(templates) | template_grants(pipeline) | object_grants(items)
        for templates, pipeline, items in zip(both, delivery, objects, strict=True)
    ]
    return Review(
        experiments=(*_experiments(base, head, *both), *_pipeline(*delivery)),
        granted=tuple(sorted(grants[1] - grants[0])),
        withdrawn=tuple(sorted(grants[0] - grants[1])),
        diffs=(
            *_prompt_diffs(base, head),
            *_object_diffs(base, head),
            *_template_diffs(*both),
            *_template_diffs(*delivery),
        ),
    )


def _pipeline(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ExperimentReview]:
    """Whoever changes the pipeline changes what happens before anybody approves it."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        places = [change.path for change in changes(before.get(name, {}), after.get(name, {}))]
        if places:
            more = f" and {len(places) - 1} more places" if len(places) > 1 else ""
            found.append(Note("delivery", f"{name} changes: {places[0]}{more}"))
    if found:
        yield ExperimentReview(PIPELINE, (), tuple(found))


def _experiments(
    base: Mapping[str, Any], head: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ExperimentReview]:
    for name, new in head["experiments"].items():
        old = base["experiments"].get(name)
        was, now = (kubernetes.by_key(state["objects"].get(name, {})) for state in (base, head))
        if old is None:
            yield ExperimentReview(
                name,
                review_arms({"arms": {}}, new, was, now),
                (Note("arms", f"new experiment: {', '.join(new['arms'])}"), *notes.cost({}, new)),
            )
            continue
        arms = review_arms(old, new, was, now)
        said = (
            *notes.cost(old, new),
            *notes.moved(name, old, new),
            *notes.fairness(old, new),
            *notes.facts(old, new),
            *notes.prompts(old["prompts"], new["prompts"]),
            *(Note("apply", text) for text in sorted(kubernetes.refused(was, now))),
            *notes.objects(arms, *(state["objects"].get(name, {}) for state in (base, head))),
            *notes.resources(
                name, before, after, names=base["experiments"].keys() | head["experiments"].keys()
            ),
        )
        if said or any(row.changes or row.needs_human for row in arms):
            yield ExperimentReview(name, arms, said)
    for name in base["experiments"].keys() - head["experiments"].keys():
        text = f"experiment removed or renamed: {notes.left_behind(name, base['experiments'][name])}"
        yield ExperimentReview(name, (), (Note("cost", text),))


def _prompt_diffs(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Diff]:
    """A prompt a line, as JSON writes it: its own line ends and control characters are escaped."""
    for name in base["experiments"].keys() & head["experiments"].keys():
        texts = [
            "\n".join(
                f"{class_name}: {json.dumps(prompt, ensure_ascii=False)}"
                for class_name, prompts in state["experiments"][name]["prompts"].items()
                for prompt in prompts
            )
            for state in (base, head)
        ]
        if texts[0] != texts[1]:
            yield Diff(f"prompts of {name}", _unified(*texts))


def _object_diffs(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Diff]:
    for name in dict.fromkeys((*base["objects"], *head["objects"])):
        files = [state["objects"].get(name, {}) for state in (base, head)]
        for file in sorted(files[0].keys() | files[1].keys()):
            texts = [_yaml(side.get(file, [])) for side in files]
            if texts[0] != texts[1]:
                yield Diff(f"manifests/{name}/{file}", _unified(*texts))


def _template_diffs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Diff]:
    for stack in sorted(before.keys() | after.keys()):
        texts = [json.dumps(side.get(stack, {}), indent=1, sort_keys=True) for side in (before, after)]
        if texts[0] != texts[1]:
            yield Diff(f"template {stack}", _unified(*texts))


def _yaml(items: list[dict[str, Any]]) -> str:
    """As the committed file has it."""
    return ManifestFile("", tuple(items)).yaml()


def _unified(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3)
    return "\n".join(list(lines)[2:])
