"""Deploy into the loopback server, and compare what was applied with what was reviewed: `manifests/<experiment>/`, but for
the placeholders."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cdk8s_charts.manifests import read as read_manifests
from core.differences import differences
from core.findings import Outside
from experiment import load
from lab.aws.moto_models import ACCOUNT, KUBERNETES_RESOURCE
from lab.aws.moto_server import client, rehearsal_server
from lab.aws.stacks import (
    BOOTSTRAP_STACK,
    POLICIES_STACK,
    Cdk,
    Outcome,
    RehearsedResource,
    check_roles,
    deploy_policies,
    read_assembly,
    resources_of,
    stand_in_for_bootstrap,
)
from lab.aws.surroundings import Remains, listed, put_there, remains, take_down

Object = Mapping[str, Any]
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal in which every resource was created, recorded or skipped by its condition."""

    region: str
    stacks: tuple[str, ...]
    """In creation order."""
    resources: tuple[RehearsedResource, ...]
    images: tuple[str, ...]
    """`repository:tag` of container images that the stacks name and that were neither built nor pushed."""
    unresolved: tuple[str, ...]
    """What moto said it cannot resolve; a property that holds such a reference is not usable."""
    changed: tuple[str, ...] = ()
    """Where what was applied is not what was reviewed."""
    unchanged: int = 0
    """Stacks in which a second deployment found nothing to change."""
    bounded_roles: int = 0
    """Roles that were asked for their policies and their boundary."""
    remains: Remains | None = None
    """The account after the teardown; these four come from a rehearsal with the command line."""

    def types(self, outcome: Outcome) -> dict[str, int]:
        """How many resources of each type came to this, by name."""
        found = Counter(one.type for one in self.resources if one.outcome == outcome)
        return dict(sorted(found.items()))

    @property
    def objects(self) -> list[Object]:
        """Kubernetes objects that the kubectl provider would have applied, every token resolved, in order of the stacks."""
        manifests = [one.properties for one in self.resources if one.type == KUBERNETES_RESOURCE]
        return [found for entry in manifests if entry for found in json.loads(entry["Manifest"])]


def rehearse(assembly: Path, *, region: str, endpoint: str) -> Rehearsal:
    """Create every stack of `assembly`, in order, without the command line, in the empty server at `endpoint`.

    Raises `Outside`, and `Refusal` at the first stack that fails or lacks a resource.
    """
    read, client_of = read_assembly(assembly), partial(client, endpoint=endpoint, region=region)
    with _complaints(endpoint) as complaints:
        stand_in_for_bootstrap(read, client_of, region=region)
        resources: list[RehearsedResource] = []
        for stack in read.stacks:
            stack.create(client_of("cloudformation"))
            resources += resources_of(stack.name, region=region)
    return Rehearsal(
        region=region,
        stacks=tuple(stack.name for stack in read.stacks),
        resources=tuple(resources),
        images=read.images,
        unresolved=tuple(dict.fromkeys(complaints)),
    )


def rehearse_with_cdk(
    *, file: Path, manifests: Path, into: str | None, folder: Path, report: Callable[[str], None]
) -> Rehearsal:
    """The committed policies, `cdk bootstrap` with them, `cdk deploy --all` twice, and at last the teardown. `into` makes a
    VPC or a cluster before, which the experiment then names. `folder` gets assembly and logs; `report` gets each command.

    The app is synthesized once: the bootstrap runs in a folder without an app, and the second deployment takes the same
    assembly. `--method direct`, because moto loses the exports of a stack that comes from a change set. Raises what
    `rehearse` raises.
    """
    region, folder = load(file).cluster.region, folder.resolve()
    with rehearsal_server() as endpoint, _complaints(endpoint) as complaints:
        client_of = partial(client, endpoint=endpoint, region=region)
        if into is not None:
            report(f"an existing {into}")
            file, manifests = put_there(file, into, client_of, folder)
        experiment = load(file)
        report(f"aws cloudformation deploy --stack-name {POLICIES_STACK}")
        policies = deploy_policies(client_of("cloudformation"))
        deployment, assembly = folder / "deployment.yaml", folder / "cdk.out"
        # An administrator and an e-mail address make resources that an empty file does not.
        admins, email = (
            f"admins: [arn:aws:iam::{ACCOUNT}:role/rehearsal]",
            "alarm_email: rehearsal@example.com",
        )
        lines = (f"permissions_boundary: {policies.boundary}", admins, email, "")
        deployment.write_text("\n".join(lines), encoding="utf-8")
        cdk = Cdk(folder=folder, endpoint=endpoint, region=region, report=report)
        cdk.run("bootstrap", f"aws://{ACCOUNT}/{region}", *policies.flags, log="bootstrap.log", where=folder)
        before = listed(client_of)
        app = ["--app", f".venv/bin/python app.py {shlex.quote(str(deployment))}", "--output", str(assembly)]
        for name, value in (("experiment", file), ("manifests", manifests)):
            app += ["-c", f"{name}={value.resolve()}"]
        deploy, approved = ("deploy", "--all", "--method", "direct"), ("--require-approval", "never")
        cdk.run(*deploy, app=[*approved, *app], log="deploy.log")
        again = cdk.run(*deploy, app=[*approved, "--app", str(assembly)], log="deploy-again.log")
        read = read_assembly(assembly)
        stacks = (POLICIES_STACK, BOOTSTRAP_STACK, *(stack.name for stack in read.stacks))
        resources = [one for stack in stacks for one in resources_of(stack, region=region)]
        bounded_roles = check_roles(resources, policies, client_of("iam"))
        report("trnspec teardown")
        take_down(file, experiment.name, folder=folder, endpoint=endpoint, region=region)
        after = listed(client_of)
    found = Rehearsal(
        region=region,
        stacks=stacks,
        resources=tuple(resources),
        images=read.images,
        unresolved=tuple(dict.fromkeys(complaints)),
        unchanged=again.count("(no changes)"),
        bounded_roles=bounded_roles,
        remains=remains(before, after),
    )
    reviewed = [one for part in read_manifests(experiment, manifests) for one in part.objects]
    return replace(found, changed=not_as_reviewed(reviewed, found.objects))


@contextmanager
def _complaints(endpoint: str) -> Iterator[Sequence[str]]:
    """moto's warnings about templates, which would otherwise go to stderr. Raises `Outside` where the server fails."""
    heard: list[str] = []
    listener, logger = logging.Handler(logging.WARNING), logging.getLogger("moto")
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(listener)
    try:
        yield heard
    except (BotoCoreError, ClientError) as error:
        reason = str(error).partition("\n")[0]
        raise Outside(f"rehearsal server {endpoint}: {reason}; it must be running, and empty") from error
    finally:
        logger.removeHandler(listener)


def not_as_reviewed(reviewed: Iterable[Object], applied: Iterable[Object]) -> tuple[str, ...]:
    """Each place where the two differ, in words; a placeholder stands for any text that is not empty."""
    found = {_name(one): one for one in applied}
    # A Job's name ends with a placeholder for the tag of its image.
    wanted = {
        next((name for name in found if _stands_for(_name(one), name)), _name(one)): one for one in reviewed
    }
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


def _same(reviewed: Any, applied: Any) -> bool:
    # True == 1 in Python, and not in Kubernetes.
    if reviewed == applied and isinstance(reviewed, bool) == isinstance(applied, bool):
        return True
    return isinstance(reviewed, str) and isinstance(applied, str) and _stands_for(reviewed, applied)


def _stands_for(reviewed: str, applied: str) -> bool:
    parts = _PLACEHOLDER.split(reviewed)
    pattern = r"[^$]+".join(re.escape(part) for part in parts)
    return len(parts) > 1 and bool(re.fullmatch(pattern, applied, re.DOTALL))
