"""Names: what the catalogue knows, what Kubernetes accepts, what must be distinct.

Weights: may they be fetched?
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.models import MODELS, described
from experiment.catalogue.runtimes import RUNTIMES
from experiment.finding import Finding
from experiment.naming import BENCHMARK_NAME, LMEVAL_NAME, promoted_load_balancer, promoted_service

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from experiment.model import ExpandedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.model import ExpandedFile


DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035 label, what Kubernetes asks of a Service's name."""
REPOSITORY = re.compile(r"[A-Za-z0-9][-.\w]{0,95}/[A-Za-z0-9][-.\w]{0,95}", re.ASCII)
MAX_EXPERIMENT_NAME = 25
"""Names made from it stay within what AWS and Kubernetes take; in some regions less, see `longest_name`."""
MAX_ARM_NAME = 54
"""Names of Jobs and containers are an arm's with at most nine characters more, and end at 63."""


def catalogue_names(file: ExpandedFile) -> Iterator[Finding]:
    """Models, runtime and instance type must be in the catalogue."""
    yield from _known("target.model", file.target.model, MODELS, "model")
    yield from _known("runtime", file.runtime, RUNTIMES, "runtime")
    yield from _known("cluster.instance", file.cluster.instance, INSTANCES, "instance type")
    for number, arm in enumerate(file.arms):
        if arm.runtime is not None:
            yield from _known(f"arms[{number}].runtime", arm.runtime, RUNTIMES, "runtime")
        if arm.speculation is not None:
            draft, path = arm.speculation.draft, f"arms[{number}].speculation.draft"
            if draft.head_for is None:
                yield from _known(f"{path}.model", draft.model, MODELS, "model")
            else:
                yield from _known(f"{path}.head_for", draft.head_for, MODELS, "model")


def repositories(file: ExpandedFile) -> Iterator[Finding]:
    """A head may have any name, but it is fetched from Hugging Face like every other."""
    for number, arm in enumerate(file.arms):
        draft = arm.speculation.draft if arm.speculation else None
        if draft is not None and draft.head_for is not None and not REPOSITORY.fullmatch(draft.model):
            yield Finding(
                f"arms[{number}].speculation.draft.model",
                draft.model,
                "is no repository of Hugging Face",
                "write it as owner/name",
            )


def dns_labels(file: ExpandedFile) -> Iterator[Finding]:
    """Names become Kubernetes names."""
    for path, name in [
        ("name", file.name),
        *((f"arms[{n}].name", arm.name) for n, arm in enumerate(file.arms)),
    ]:
        if not DNS_LABEL.fullmatch(name):
            yield Finding(
                path,
                name,
                "is no DNS label, which Kubernetes asks of a Service's name",
                "use lower-case letters, digits and hyphens, starting with a letter, 63 at most",
            )
    for number, arm in enumerate(file.arms):
        if DNS_LABEL.fullmatch(arm.name) and len(arm.name) > MAX_ARM_NAME:
            yield Finding(
                f"arms[{number}].name",
                arm.name,
                f"has {len(arm.name)} characters, and names of Jobs made from it would pass 63",
                f"use {MAX_ARM_NAME} at most, with what a sweep adds",
            )
    if len(file.name) > (most := longest_name(file.cluster.region)):
        yield Finding(
            "name",
            file.name,
            f"has {len(file.name)} characters, and S3 bucket names made from it would pass 63",
            f"use {most} at most in {file.cluster.region}",
            rests_on=("cluster.region",),
        )


def longest_name(region: str) -> int:
    """Characters that an experiment's name may have there: a bucket's name carries it beside the longest purpose, the
    account's 12 digits and the region, in 63 characters."""
    return min(MAX_EXPERIMENT_NAME, 63 - len(f"-checkpoints-{0:012}-{region}"))


def distinct_arms(file: ExpandedFile) -> Iterator[Finding]:
    """Two arms with one name would be one service."""
    seen: dict[str, int] = {}
    for number, arm in enumerate(file.arms):
        if arm.name in seen:
            yield Finding(
                f"arms[{number}].name",
                arm.name,
                "is the name of another arm too",
                "give each arm its own name; a sweep adds its values to the arm's",
            )
        seen.setdefault(arm.name, number)
    reserved = (
        (BENCHMARK_NAME, "benchmark"),
        (LMEVAL_NAME, "quality check"),
        (promoted_service(file.name), "promoted service"),
        (promoted_load_balancer(file.name), "promoted service's load balancer"),
    )
    for taken, what in reserved:
        if taken in seen:
            yield Finding(f"arms[{seen[taken]}].name", taken, f"is the {what}'s name", "choose another")


def own_namespace(file: ExpandedFile) -> Iterator[Finding]:
    """The name becomes a namespace and the beginning of bucket names, and some of both are taken."""
    if file.name == "default" or file.name.startswith(("kube-", "xn--", "sthree-", "amzn-s3-demo-")):
        yield Finding("name", file.name, "is reserved by Kubernetes or S3", "choose another")


def _known(path: str, name: str, catalogue: Iterable[str], what: str) -> Iterator[Finding]:
    names = list(catalogue)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
        yield Finding(path, name, f"is no {what} of the catalogue", hint)


def _models(file: ExpandedFile) -> Iterator[tuple[str, Model]]:
    """Path and model of the target and of every draft that it could have; another will be exchanged anyway."""
    target = MODELS.get(file.target.model)
    if target is not None:
        yield "target.model", target
    for number, arm in enumerate(file.arms):
        draft = described(arm.speculation.draft) if arm.speculation else None
        if draft is not None and (target is None or draft.tokenizer == target.tokenizer):
            yield f"arms[{number}].speculation.draft.model", draft


def tokens(file: ExpandedFile) -> Iterator[Finding]:
    """Hugging Face hands gated models to accepted users only."""
    if file.weights.token_secret is not None:
        return
    for path, model in _models(file):
        if model.gated:
            yield Finding(
                path,
                model.name,
                "is gated on Hugging Face, and there is no `weights.token_secret`",
                "accept its licence, put a token into a Secret (key `token`) and name that Secret there",
                rests_on=("weights",),
            )
            return
