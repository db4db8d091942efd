"""Deploy a cloud assembly into the loopback server and account for every resource of every template."""

from __future__ import annotations

import io
import logging
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lab.aws import moto_types
from lab.aws.accounting import Outcome, Resource, account_for
from lab.aws.assembly import Assembly, StackTemplate, read_assembly
from lab.aws.errors import ServerError, StackError
from lab.aws.facts import ReadBack
from lab.aws.readback import Record, read_back
from lab.aws.server import DEFAULT_ACCOUNT, check_place, client, rehearsal_server

ClientOf = Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a rehearsal came to; there is one only when every resource is accounted for."""

    region: str
    account: str
    stacks: tuple[str, ...]
    """In creation order."""
    stages: tuple[str, ...]
    """Stages that a pipeline deploys later: not rehearsed."""
    resources: tuple[Resource, ...]
    facts: ReadBack
    placeholders: tuple[str, ...]
    """`bucket/key` of Lambda code that stood in for the real asset: nothing invokes a function here."""
    images: tuple[str, ...]
    """`repository:tag` of container images that the stacks name and that were neither built nor pushed."""
    unresolved: tuple[str, ...]
    """What moto said it cannot resolve; a property that holds such a reference holds nothing of use."""

    def count(self, stack: str, outcome: Outcome) -> int:
        return sum(one.stack == stack and one.outcome is outcome for one in self.resources)

    def types(self, outcome: Outcome) -> Mapping[str, int]:
        """How many resources of each type came to this, by name."""
        return dict(sorted(Counter(one.type for one in self.resources if one.outcome is outcome).items()))


def rehearse(
    assembly: Path, *, region: str, account: str = DEFAULT_ACCOUNT, endpoint: str | None = None
) -> Rehearsal:
    """Deploy every stack of `assembly`, in order, and read back what came of it.

    `endpoint` comes from `rehearsal_server()`; without one, a server is kept up for the length of this call. The server
    must be empty. Raises `AssemblyError`, `StackError` at the first stack that fails, `UnaccountedError`, `ServerError`.
    """
    check_place(account=account, region=region)
    read = read_assembly(assembly, account=account, region=region)
    with nullcontext(endpoint) if endpoint else rehearsal_server() as address, _complaints() as complaints:
        client_of: ClientOf = partial(_one_client, {}, endpoint=address, region=region, account=account)
        try:
            placeholders = _bootstrap(read, client_of, account=account, region=region)
            resources = tuple(
                one
                for stack in read.stacks
                for one in _deploy(stack, client_of("cloudformation"), account, region)
            )
            facts = read_back(resources, _records(read, account, region), client_of)
        except (BotoCoreError, ClientError) as error:
            reason = str(error).partition("\n")[0]
            raise ServerError(
                f"rehearsal server {address}: {reason}; it must be running, and empty"
            ) from error
    return Rehearsal(
        region=region,
        account=account,
        stacks=tuple(stack.name for stack in read.stacks),
        stages=read.stages,
        resources=resources,
        facts=facts,
        placeholders=placeholders,
        images=read.images,
        unresolved=tuple(dict.fromkeys(complaints)),
    )


def _one_client(made: dict[str, Any], service: str, **where: str) -> Any:
    if service not in made:
        made[service] = client(service, **where)
    return made[service]


def _bootstrap(assembly: Assembly, client_of: ClientOf, *, account: str, region: str) -> tuple[str, ...]:
    """What `cdk bootstrap` and the publishing of assets leave behind, as far as the templates need it."""
    for name, version in assembly.bootstrap.items():
        client_of("ssm").put_parameter(Name=name, Value=str(version), Type="String")
    assets = assembly.code_assets(account=account, region=region)
    for bucket in sorted({bucket for bucket, _ in assets}):
        where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        client_of("s3").create_bucket(Bucket=bucket, **where)
    for bucket, key in assets:
        client_of("s3").put_object(Bucket=bucket, Key=key, Body=_placeholder_code())
    return tuple(f"{bucket}/{key}" for bucket, key in assets)


def _placeholder_code() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README", "A placeholder of the rehearsal, which invokes no function.\n")
    return buffer.getvalue()


def _deploy(stack: StackTemplate, cloudformation: Any, account: str, region: str) -> tuple[Resource, ...]:
    try:
        cloudformation.create_stack(
            StackName=stack.name,
            TemplateBody=stack.body,
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
            Tags=[{"Key": key, "Value": value} for key, value in stack.tags.items()],
        )
    except ClientError as error:
        raise StackError(f"stack {stack.name}: {error.response['Error']['Message']}") from error
    status = cloudformation.describe_stacks(StackName=stack.name)["Stacks"][0]["StackStatus"]
    if status != "CREATE_COMPLETE":
        raise StackError(f"stack {stack.name}: ended as {status}, not CREATE_COMPLETE")
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack.name)
    listed = {
        one["LogicalResourceId"]: one.get("PhysicalResourceId", "")
        for page in pages
        for one in page["StackResourceSummaries"]
        if one.get("LogicalResourceId")
    }
    return account_for(
        stack.name,
        stack.template,
        listed=listed,
        false_conditions=moto_types.false_conditions(stack.name, account=account, region=region),
        outcome_of=moto_types.outcome_of,
    )


def _records(assembly: Assembly, account: str, region: str) -> Iterator[Record]:
    for stack in assembly.stacks:
        for logical_id, type_, properties in moto_types.recorded(stack.name, account=account, region=region):
            yield stack.name, logical_id, type_, properties


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """moto's warnings about templates, which would otherwise go by on stderr."""
    listener, logger = _Listener(), logging.getLogger("moto")
    logger.addHandler(listener)
    try:
        yield listener.heard
    finally:
        logger.removeHandler(listener)
