"""The benchmark's own image and extras."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from experiment.catalogue.runtimes import RUNTIMES
from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.schema import ExpandedFile

_BY_DIGEST = re.compile(r"[a-z0-9.:-]+(/[a-z0-9._-]+)+(:[\w.-]{1,128})?@sha256:[0-9a-f]{64}")
_EXAMPLE = "111122223333.dkr.ecr.us-east-2.amazonaws.com/llmperf:2.0@sha256:<64 hex digits>"


def llmperf_image(file: ExpandedFile) -> Iterator[Problem]:
    """llmperf has no release and no image of its own: whoever wants its figures brings one, by digest."""
    harness, image, path = file.benchmark.harness, file.benchmark.llmperf_image, "benchmark.llmperf_image"
    if harness == "llmperf" and image is None:
        yield Problem(
            path,
            None,
            "is missing: harness llmperf runs in an image of yours",
            f"build it and give its digest, as in {_EXAMPLE}",
            ("benchmark.harness",),
        )
    elif harness != "llmperf" and image is not None:
        yield Problem(
            path,
            image,
            f"is never used by harness {harness}",
            "remove it, or say `harness: llmperf`",
            ("benchmark.harness",),
        )
    elif image is not None and not _BY_DIGEST.fullmatch(image):
        yield Problem(
            path,
            image,
            "does not pin an image by digest, so it may change under its name",
            f"write {_EXAMPLE}",
        )


def in_a_cluster(file: ExpandedFile) -> Iterator[Problem]:
    """llmperf and lm-eval run as pods."""
    runtime = RUNTIMES.get(file.runtime)
    if runtime is None or not runtime.lab_only:
        return
    for path, value, remedy in (
        ("benchmark.lm_eval", file.benchmark.lm_eval, "remove the section"),
        ("benchmark.harness", file.benchmark.harness == "llmperf" or None, "use `native`"),
    ):
        if value is not None:
            yield Problem(
                path,
                None,
                f"runs as a pod, and runtime {runtime.name} runs in the lab only",
                remedy,
                ("runtime",),
            )


RULES = (llmperf_image, in_a_cluster)
