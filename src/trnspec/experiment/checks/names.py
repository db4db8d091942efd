"""Checks of names: they must be in the catalogue, valid in Kubernetes, and distinct."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator

from trnspec.core.findings import Finding
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.models import HEADS, MODELS
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.checks.treatments import treated
from trnspec.experiment.naming import BENCHMARK_NAME, LMEVAL_NAME, promoted_service
from trnspec.experiment.refusals import refused
from trnspec.experiment.sweeps import ExpandedFile, SingleArm

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035 label, as Kubernetes requires for the name of a Service."""
_OWN_MODEL = (
    " For a fine-tune add `like: {}`, for another model `config:` with the path of its config.json: "
    "docs/adding-a-model.md"
)
REPOSITORY = re.compile(r"[A-Za-z0-9][-.\w]{0,95}/[A-Za-z0-9][-.\w]{0,95}", re.ASCII)
_EXPERTS = re.compile(
    r"-a\d+(\.\d+)?[bm]\b|\d+x\d+|mixtral|moe|gpt-oss|deepseek-(v[23]|r1$)|llama-4|maverick|scout",
    re.IGNORECASE,
)
"""Names of mixtures of experts."""
MAX_EXPERIMENT_NAME = 25
"""Names that are made from it must be valid in AWS and Kubernetes; in some regions the limit is lower, see `max_name_length`."""
MAX_ARM_NAME = 54
"""Names of Jobs and containers add at most nine characters to an arm's name, and may have 63."""


def catalogue_names(file: ExpandedFile) -> Iterator[Finding]:
    """Runtimes and instance type must be in the catalogue."""
    yield from known("runtime", file.runtime, RUNTIMES, "runtime")
    yield from known("cluster.instance", file.cluster.instance, INSTANCES, "instance type")
    for arm in file.arms:
        if arm.runtime_at != "runtime":
            yield from known(arm.runtime_at, arm.runtime, RUNTIMES, "runtime")


def models(file: ExpandedFile) -> Iterator[Finding]:
    """Models must be in the catalogue, or be described in exactly one way."""
    for path, ref in file.references:
        shapes = {
            "like": ref.like,
            "config": ref.config,
            "head_for": getattr(ref, "head_for", None),
        }
        first, *more = [key for key, value in shapes.items() if value is not None] or ["model"]
        if more:
            yield refused("shape twice", shapes[more[0]], at=f"{path}.{more[0]}", first=first)
        elif first == "like":
            yield from known(f"{path}.like", str(ref.like), MODELS, "model")
        elif first == "head_for":
            yield from known(f"{path}.head_for", shapes[first] or "", file.models, "model")
        elif first == "model" and ref is not file.target and ref.model in HEADS:
            yield refused("model head-alone", ref.model, at=f"{path}.model", target=HEADS[ref.model].target)
        elif first == "model":
            never = "" if ref is file.target else file.target.model
            yield from known(f"{path}.model", ref.model, file.models, "model", _OWN_MODEL, never=never)


def known(
    path: str, name: str, catalogue: Collection[str], what: str, own: str = "", *, never: str = ""
) -> Iterator[Finding]:
    """Yield a finding if the catalogue has no such name. `own` describes alternatives; {} becomes the closest name, or NAME.

    `never` is not suggested: the target of a draft.
    """
    if name in catalogue:
        return
    if what == "model" and _EXPERTS.search(name):
        yield refused("catalogue experts", name, at=path)
        return
    names = [one for one in catalogue if one != never]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}{'.' if own else ''}"
    hint += own.format(close[0] if close else "NAME")
    yield refused("catalogue unknown", name, at=path, what=what, hint=hint)


def repositories(file: ExpandedFile) -> Iterator[Finding]:
    """A model outside the catalogue needs a name under which it can be fetched and served. A bucket has no
    commits; its contents are recorded when the model is fetched."""
    for path, ref in file.references:
        if ref.model not in MODELS and file.described(ref) and not REPOSITORY.fullmatch(ref.model):
            yield refused("model no-repository", ref.model, at=f"{path}.model")
        if ref.weights is not None and ref.revision is not None:
            yield refused("model commit-of-a-bucket", ref.revision, at=f"{path}.revision")


def dns_labels(file: ExpandedFile) -> Iterator[Finding]:
    """Names become Kubernetes names."""
    arms = [(f"{arm.at}.name", arm.name) for arm in file.arms]
    for path, name in [("name", file.name), *arms]:
        if not DNS_LABEL.fullmatch(name):
            yield refused("name no-label", name, at=path)
    for path, name in arms:
        if DNS_LABEL.fullmatch(name) and len(name) > MAX_ARM_NAME:
            yield refused("arm too-long", name, at=path, length=len(name), maximum=MAX_ARM_NAME)


def own_namespace(file: ExpandedFile) -> Iterator[Finding]:
    """The name becomes a namespace and the prefix of bucket names, which have a maximum length; some names are reserved."""
    name, region = file.name, file.cluster.region
    if name == "default" or name.startswith(("kube-", "xn--", "sthree-", "amzn-s3-demo-")):
        yield refused("name reserved", name)
    if len(name) > (maximum := max_name_length(region)):
        yield refused("name too-long", name, length=len(name), maximum=maximum, region=region)


def max_name_length(region: str) -> int:
    """Return the maximum length of an experiment's name in a region: a bucket's name has it with the longest purpose, the
    account's 12 digits and the region, in 63 characters."""
    return min(MAX_EXPERIMENT_NAME, 63 - len(f"-checkpoints-{0:012}-{region}"))


def distinct_arms(file: ExpandedFile) -> Iterator[Finding]:
    """Two arms with one name would be one service."""
    seen: dict[str, SingleArm] = {}
    for arm in file.arms:
        if seen.setdefault(arm.name, arm) is not arm:
            yield refused("arm twice", arm.name, at=f"{arm.at}.name")
    reserved = {
        BENCHMARK_NAME: "benchmark",
        LMEVAL_NAME: "quality check",
        promoted_service(file.name): "promoted service",
    }
    for taken, what in reserved.items():
        if taken in seen:
            yield refused("arm reserved", taken, at=f"{seen[taken].at}.name", what=what)


def tokens(file: ExpandedFile) -> Iterator[Finding]:
    """Gated models of Hugging Face need a token."""
    if file.weights.token_secret is not None:
        return
    target = file.described(file.target)
    needed = [("target", target)] if target is not None else []
    for drafted in treated(file):  # a draft with another tokenizer is refused by another rule
        if drafted.draft is not None and (target is None or drafted.draft.tokenizer == target.tokenizer):
            needed.append((drafted.arm.draft_at, drafted.draft))
    bucket = {path for path, drafted in file.references if drafted.weights is not None}
    gated = ((path, model.name) for path, model in needed if model.gated and path not in bucket)
    for path, name in list(gated)[:1]:
        yield refused("model gated", name, at=f"{path}.model")


RULES = (catalogue_names, models, repositories, dns_labels, distinct_arms, own_namespace, tokens)
