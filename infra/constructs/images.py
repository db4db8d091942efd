"""Container images that are built from this repository: which placeholder of the manifests each fills, and from what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cdk8s_charts.manifests import ManifestFile, names_in


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image; its build context is the repository, reduced to what its Dockerfile copies."""

    placeholder: str
    construct_id: str
    dockerfile: str
    """Path in the repository."""
    sources: tuple[str, ...]
    """Files and folders in the repository that the Dockerfile copies."""

    @property
    def exclude(self) -> list[str]:
        """Everything else, as a .dockerignore says it: so that only a change of these gives a new tag."""
        kept = [f"!{path}" for path in (self.dockerfile, *self.sources)]
        return ["*", *kept, "**/__pycache__"]


IMAGES = (
    Image(
        placeholder="BENCHMARK_IMAGE",
        construct_id="BenchmarkImage",
        dockerfile="images/tools/Dockerfile",
        sources=("images/tools/requirements.txt", "core", "benchmark", "store"),
    ),
    Image(
        placeholder="LMEVAL_IMAGE",
        construct_id="LmEvalImage",
        dockerfile="images/lmeval/Dockerfile",
        sources=("images/lmeval/requirements.txt", "images/lmeval/questions.py"),
    ),
)


def images_in(files: Iterable[ManifestFile]) -> tuple[Image, ...]:
    """The images that the manifests of an experiment name."""
    named = set().union(*(names_in(file.objects) for file in files))
    return tuple(image for image in IMAGES if image.placeholder in named)
