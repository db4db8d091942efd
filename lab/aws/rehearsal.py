"""Deploy a cloud assembly into the loopback server, account for every resource of every template, and hold what was
applied against what was reviewed: `manifests/<experiment>/`, but for the placeholders.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cdk8s_charts.manifests import read as read_manifests
from core.findings import Outside
from experiment import load
from experiment.difference import differences
from lab.aws.accounting import Resource, account_of, create
from lab.aws.assembly import ACCOUNT, Assembly, StackTemplate, read_assembly, stand_in_for_bootstrap
from lab.aws.moto_models import Outcome, recorded
from lab.aws.moto_server import client, rehearsal_server
from lab.aws.readback import ReadBack, read_back
from lab.aws.surroundings import Remains, listed, put_there, remains, take_down
from lab.aws.toolkit import BOOTSTRAP_STACK, bootstrap_and_deploy, check_roles, deploy_policies

ClientOf = Callable[[str], Any]
"""Makes a client from the name of a service."""
Object = Mapping[str, Any]
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal in which every resource is accounted for."""

    region: str
    stacks: tuple[str, ...]
    """In creation order."""
    stages: tuple[str, ...]
    """Stages that a pipeline deploys later: not rehearsed."""
    resources: tuple[Resource, ...]
    facts: ReadBack
    placeholders: tuple[str, ...] = ()
    """`bucket/key` of Lambda code in place of the real asset: nothing invokes a function here."""
    published: tuple[tuple[str, int], ...] = ()
    """`bucket/key` of Lambda code that the command line published, and how many bytes of it are there."""
    images: tuple[str, ...]
    """`repository:tag` of container images that the stacks name and that were neither built nor pushed."""
    changed: tuple[str, ...] = ()
    """Where what was applied is not what was reviewed."""
    unchanged: int = 0
    """Stacks in which a second deployment found nothing to change."""
    remains: Remains | None = None
    """The account after the teardown, after a rehearsal with the command line."""
    bounded_roles: int = 0
    """Roles that were asked for their policies and their boundary, after the bootstrap with the command line."""
    unresolved: tuple[str, ...]
    """What moto said it cannot resolve; a property that holds such a reference is not usable."""

    def count(self, stack: str, outcome: Outcome) -> int:
        return sum(one.stack == stack and one.outcome is outcome for one in self.resources)

    def types(self, outcome: Outcome) -> Mapping[str, int]:
        """How many resources of each type came to this, by name."""
        return dict(sorted(Counter(one.type for one in self.resources if one.outcome is outcome).items()))


def rehearse(assembly: Path, *, region: str, endpoint: str | None = None) -> Rehearsal:
    """Create every stack of `assembly`, in order, without the command line, and read back what came of it.

    `endpoint` comes from `rehearsal_server()`; without one, a server is kept up for the length of this call. The server
    must be empty. Raises `Outside`, and `Refusal` at the first stack that fails or lacks a resource.
    """
    read = read_assembly(assembly)
    with _listening(endpoint, region=region) as (client_of, complaints):
        placeholders = stand_in_for_bootstrap(read, client_of, region=region)
        resources: list[Resource] = []
        for stack in read.stacks:
            create(stack, client_of("cloudformation"))
            resources += account_of(stack, client_of("cloudformation"), region=region)
        return Rehearsal(
            region=region,
            stacks=tuple(stack.name for stack in read.stacks),
            stages=read.stages,
            resources=tuple(resources),
            facts=_facts(read.stacks, resources, client_of, region=region),
            placeholders=placeholders,
            images=read.images,
            unresolved=tuple(dict.fromkeys(complaints)),
        )


def rehearse_with_cdk(
    *, file: Path, manifests: Path, into: str | None, folder: Path, report: Callable[[str], None]
) -> Rehearsal:
    """The committed policies, `cdk bootstrap` with them and `cdk deploy --all` with the pinned command line, twice, then the
    same account, in which the stacks of the policies and of the bootstrap come first; at last the teardown, and what it
    leaves. `into` makes a VPC or a cluster before, which the experiment then names. `folder` gets assembly and logs.

    Raises what `rehearse` raises.
    """
    region = load(file).cluster.region
    before: dict[str, str] = {}
    with _listening(None, region=region) as (client_of, complaints):
        cloudformation = client_of("cloudformation")
        if into is not None:
            report(f"an existing {into}")
            file, manifests = put_there(file, into, client_of, folder)
        experiment = load(file)
        report("aws cloudformation deploy --stack-name speculation-policies")
        policies = deploy_policies(cloudformation)
        deployment = folder / "deployment.yaml"
        deployment.write_text(_deployment_file(policies.boundary), encoding="utf-8")
        deployed = bootstrap_and_deploy(
            context={"experiment": str(file.resolve()), "manifests": str(manifests.resolve())},
            deployment=deployment,
            bootstrapped=lambda: before.update(listed(client_of)),
            bootstrap_flags=policies.flags,
            folder=folder,
            endpoint=cloudformation.meta.endpoint_url,
            region=region,
            report=report,
        )
        read = read_assembly(deployed.assembly)
        body = deployed.bootstrap_template
        toolkit = StackTemplate(name=BOOTSTRAP_STACK, body=body, template=json.loads(body), tags={})
        stacks = (policies.stack, toolkit, *read.stacks)
        resources = [one for stack in stacks for one in account_of(stack, cloudformation, region=region)]
        facts = _facts(stacks, resources, client_of, region=region)
        reviewed = [one for part in read_manifests(experiment, manifests) for one in part.objects]
        rehearsal = Rehearsal(
            region=region,
            stacks=tuple(stack.name for stack in stacks),
            stages=read.stages,
            resources=tuple(resources),
            facts=facts,
            changed=not_as_reviewed(reviewed, facts.objects),
            bounded_roles=check_roles(resources, policies, client_of("iam")),
            published=_published(read, client_of("s3"), region=region),
            images=deployed.images,
            unresolved=tuple(dict.fromkeys(complaints)),
            unchanged=deployed.unchanged,
        )
        report("trnspec teardown")
        endpoint = cloudformation.meta.endpoint_url
        take_down(file, experiment.name, folder=folder, endpoint=endpoint, region=region)
        return replace(rehearsal, remains=remains(before, listed(client_of)))


def _deployment_file(boundary: str) -> str:
    """A filled-in file: an administrator and an e-mail address make resources that an empty file does not."""
    return (
        f"permissions_boundary: {boundary}\n"
        f"admins: [arn:aws:iam::{ACCOUNT}:role/rehearsal]\n"
        "alarm_email: rehearsal@example.com\n"
    )


def _published(assembly: Assembly, s3: Any, *, region: str) -> tuple[tuple[str, int], ...]:
    """The assets that Lambda functions and layers name, with their sizes; an error where one is not in its bucket."""
    return tuple(
        (f"{bucket}/{key}", s3.head_object(Bucket=bucket, Key=key)["ContentLength"])
        for bucket, key in assembly.code_assets(region=region)
    )


def _facts(
    stacks: Sequence[StackTemplate],
    resources: Sequence[Resource],
    client_of: ClientOf,
    *,
    region: str,
) -> ReadBack:
    records = [one for stack in stacks for one in recorded(stack.name, region=region)]
    return read_back(resources, records, client_of)


@contextmanager
def _listening(endpoint: str | None, *, region: str) -> Iterator[tuple[ClientOf, Sequence[str]]]:
    """A server, a maker of clients for it, and moto's warnings meanwhile."""
    with nullcontext(endpoint) if endpoint else rehearsal_server() as address, _complaints() as complaints:
        try:
            yield partial(client, endpoint=address, region=region), complaints
        except (BotoCoreError, ClientError) as error:
            reason = str(error).partition("\n")[0]
            raise Outside(f"rehearsal server {address}: {reason}; it must be running, and empty") from error


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """moto's warnings about templates, which would otherwise go to stderr."""
    heard: list[str] = []
    listener, logger = logging.Handler(logging.WARNING), logging.getLogger("moto")
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)


def not_as_reviewed(reviewed: Iterable[Object], applied: Iterable[Object]) -> tuple[str, ...]:
    """Each place where the two differ, in words; a placeholder stands for any text that is not empty."""
    found = {_name(one): one for one in applied}
    wanted = {_name_applied(_name(one), found): one for one in reviewed}
    lines = [f"{name}: reviewed, not applied" for name in wanted.keys() - found.keys()]
    lines += [f"{name}: applied, not reviewed" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        places = differences(wanted[name], found[name], same=_same)
        lines += [f"{name} {place.path}: {place.old!r} became {place.new!r}" for place in places]
    return tuple(sorted(lines))


def _name(one: Object) -> str:
    metadata = one.get("metadata", {})
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{one.get('kind', '?')} {where}{metadata.get('name', '?')}"


def _name_applied(name: str, found: Mapping[str, Object]) -> str:
    """A Job's name ends with a placeholder for the tag of its image."""
    return next((other for other in found if _stands_for(name, other)), name)


def _same(reviewed: Any, applied: Any) -> bool:
    # True == 1 in Python, and not in Kubernetes.
    if reviewed == applied and isinstance(reviewed, bool) == isinstance(applied, bool):
        return True
    return isinstance(reviewed, str) and isinstance(applied, str) and _stands_for(reviewed, applied)


def _stands_for(reviewed: str, applied: str) -> bool:
    parts = _PLACEHOLDER.split(reviewed)
    return len(parts) > 1 and bool(
        re.fullmatch(r"[^$]+".join(re.escape(part) for part in parts), applied, re.DOTALL)
    )
