"""Names: what the catalogue knows and hands out, what Kubernetes accepts, what must be distinct."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from core.findings import Finding
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.models import FETCHED, HEADS, MODELS, Model
from experiment.catalogue.runtimes import RUNTIMES
from experiment.checks.treatments import treated
from experiment.naming import BENCHMARK_NAME, LMEVAL_NAME, promoted_load_balancer, promoted_service
from experiment.sweeps import ExpandedFile, SingleArm

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035 label, what Kubernetes asks of a Service's name."""
_OWN_MODEL = (
    " For a fine-tune write `like: {}` beside it, for another model `config:` with the path of its config.json: "
    "docs/adding-a-model.md"
)
REPOSITORY = re.compile(r"[A-Za-z0-9][-.\w]{0,95}/[A-Za-z0-9][-.\w]{0,95}", re.ASCII)
_EXPERTS = re.compile(
    r"-a\d+(\.\d+)?[bm]\b|\d+x\d+|mixtral|moe|gpt-oss|deepseek-(v[23]|r1$)|llama-4|maverick|scout",
    re.IGNORECASE,
)
"""How mixtures of experts are called."""
MAX_EXPERIMENT_NAME = 25
"""Names made from it stay within what AWS and Kubernetes take; in some regions less, see `longest_name`."""
MAX_ARM_NAME = 54
"""Names of Jobs and containers are an arm's with at most nine characters more, and end at 63."""


def catalogue_names(file: ExpandedFile) -> Iterator[Finding]:
    """Runtimes and instance type must be in the catalogue."""
    yield from known("runtime", file.runtime, RUNTIMES, "runtime")
    yield from known("cluster.instance", file.cluster.instance, INSTANCES, "instance type")
    for arm in file.arms:
        if arm.runtime_at != "runtime":
            yield from known(arm.runtime_at, arm.runtime, RUNTIMES, "runtime")


def models(file: ExpandedFile) -> Iterator[Finding]:
    """Models must be in the catalogue, or described in one way."""
    for path, one in file.references:
        shapes = {"like": one.like, "config": one.config, "head_for": getattr(one, "head_for", None)}
        first, *more = [key for key, value in shapes.items() if value is not None] or ["model"]
        if more:
            why = f"already has its shape from `{first}`"
            yield Finding(f"{path}.{more[0]}", shapes[more[0]], why, "keep one of them")
        elif first == "like":
            yield from known(f"{path}.like", str(one.like), FETCHED, "model")
        elif first == "head_for":
            yield from known(f"{path}.head_for", shapes[first] or "", file.models, "model")
        elif first == "model" and one is not file.target and one.model in HEADS:
            remedy = f"write `head_for: {HEADS[one.model].target}` beside it"
            yield Finding(f"{path}.model", one.model, "is a head, which needs its target", remedy)
        elif first == "model":
            never = "" if one is file.target else file.target.model
            yield from known(f"{path}.model", one.model, file.models, "model", _OWN_MODEL, never=never)


def known(
    path: str, name: str, catalogue: Iterable[str], what: str, own: str = "", *, never: str = ""
) -> Iterator[Finding]:
    """A finding where the catalogue has no such name; `own` says what else there is, {} being the closest one, or NAME.

    `never` is not offered in its place: the target of a draft.
    """
    names = list(catalogue)
    if name in names:
        return
    if what == "model" and _EXPERTS.search(name):
        why = "is a mixture of experts by its name, and no runtime here serves one"
        yield Finding(path, name, why, "choose a dense model: docs/adding-a-model.md")
        return
    names = [one for one in names if one != never]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}{'.' if own else ''}"
    hint += own.format(close[0] if close else "NAME")
    yield Finding(path, name, f"is not in the catalogue of {what}s", hint)


def repositories(file: ExpandedFile) -> Iterator[Finding]:
    """A model that is not in the catalogue may have any name, but it is fetched by it and served under it. A bucket has no
    commits; what was in it is recorded when it is fetched."""
    for path, one in file.references:
        if one.model not in MODELS and file.described(one) and not REPOSITORY.fullmatch(one.model):
            why = "is not the name of a repository"
            yield Finding(f"{path}.model", one.model, why, "write it as owner/name")
        if one.weights is not None and one.revision is not None:
            why = "is a commit of Hugging Face, and these weights come from a bucket"
            remedy = "remove it; give changed weights another folder"
            yield Finding(f"{path}.revision", one.revision, why, remedy)


def dns_labels(file: ExpandedFile) -> Iterator[Finding]:
    """Names become Kubernetes names, and the beginning of bucket names; some of both are taken."""
    arms = [(f"{arm.at}.name", arm.name) for arm in file.arms]
    for path, name in [("name", file.name), *arms]:
        if not DNS_LABEL.fullmatch(name):
            why = "is not a DNS label, which Kubernetes requires for the name of a Service"
            remedy = "use lower-case letters, digits and hyphens, starting with a letter, 63 at most"
            yield Finding(path, name, why, remedy)
    for path, name in arms:
        if DNS_LABEL.fullmatch(name) and len(name) > MAX_ARM_NAME:
            why = f"has {len(name)} characters, and names of Jobs made from it would pass 63"
            yield Finding(path, name, why, f"use {MAX_ARM_NAME} at most, with what a sweep adds")


def own_namespace(file: ExpandedFile) -> Iterator[Finding]:
    """The name becomes a namespace and the beginning of bucket names, which have a limit, and some of both are taken."""
    if file.name == "default" or file.name.startswith(("kube-", "xn--", "sthree-", "amzn-s3-demo-")):
        yield Finding("name", file.name, "is reserved by Kubernetes or S3", "choose another")
    if len(file.name) > (most := longest_name(file.cluster.region)):
        why = f"has {len(file.name)} characters, and S3 bucket names made from it would pass 63"
        yield Finding("name", file.name, why, f"use {most} at most in {file.cluster.region}")


def longest_name(region: str) -> int:
    """Characters that an experiment's name may have there: a bucket's name carries it beside the longest purpose, the
    account's 12 digits and the region, in 63 characters."""
    return min(MAX_EXPERIMENT_NAME, 63 - len(f"-checkpoints-{0:012}-{region}"))


def distinct_arms(file: ExpandedFile) -> Iterator[Finding]:
    """Two arms with one name would be one service."""
    seen: dict[str, SingleArm] = {}
    for arm in file.arms:
        if seen.setdefault(arm.name, arm) is not arm:
            remedy = (
                "give each arm its own name; a sweep adds its values to it, a further size of the batch -b8"
            )
            yield Finding(f"{arm.at}.name", arm.name, "is also the name of another arm", remedy)
    reserved = {
        BENCHMARK_NAME: "benchmark",
        LMEVAL_NAME: "quality check",
        promoted_service(file.name): "promoted service",
        promoted_load_balancer(file.name): "promoted service's load balancer",
    }
    for taken, what in reserved.items():
        if taken in seen:
            yield Finding(f"{seen[taken].at}.name", taken, f"is the {what}'s name", "choose another")


def tokens(file: ExpandedFile) -> Iterator[Finding]:
    """Hugging Face hands gated models to accepted users only."""
    if file.weights.token_secret is not None:
        return
    bucket = {f"{path}.model" for path, one in file.references if one.weights is not None}
    for path, model in _needed_models(file):
        if model.gated and path not in bucket:
            why = "is gated on Hugging Face, and there is no `weights.token_secret`"
            remedy = "accept its licence, put a token into a Secret (key `token`) and name that Secret there"
            yield Finding(path, model.name, why, remedy)
            return


def _needed_models(file: ExpandedFile) -> Iterator[tuple[str, Model]]:
    """Path and model of the target and of every draft that it could have; another will be exchanged anyway."""
    target = file.described(file.target)
    if target is not None:
        yield "target.model", target
    for one in treated(file):
        if one.draft is not None and (target is None or one.draft.tokenizer == target.tokenizer):
            yield f"{one.arm.draft_at}.model", one.draft


RULES = (catalogue_names, models, repositories, dns_labels, distinct_arms, own_namespace, tokens)
