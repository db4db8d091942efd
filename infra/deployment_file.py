"""`deployment.yaml`: the settings that every deployment keeps; it is read by default, so that they cannot be forgotten.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.findings import Finding, Misuse
from core.yaml_file import read_yaml
from experiment import Experiment

NAME = "deployment.yaml"
BUILDERS = ("docker", "codebuild")
APPLIERS = ("stack", "gitops")
_LONGEST = 300
_MOST_ADMINS = 100
"""Each is a resource, of which a stack has 500 at most (https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html)."""
_IN_REGION = r"(?a)arn:aws[a-z-]*:{}:[a-z0-9-]+:\d{{12}}:"
_PRINCIPAL = re.compile(
    r"arn:aws[a-z-]*:iam::\d{12}:(role(?!/aws-service-role/)|user)/[\w+=,.@/-]+", re.ASCII
)
"""EKS admits no service-linked role (https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html)."""
_TAG_KEY = re.compile(r"(?!(?i:aws:)|experiment$|Name$)[\w .:/=+@-]{1,128}")
_TAG = re.compile(r"[\w .:/=+@-]{0,256}")
_RETENTIONS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
"""https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html"""
_SESSION = re.compile(r"arn:aws[a-z-]*:sts::\d{12}:assumed-role/([\w+=,.@-]+)/.*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Lasting:
    """Settings of a cluster that stay from one deployment to the next."""

    account: str = ""
    """Id of the account that this deploys to; that of the credentials where it is empty."""
    admins: tuple[str, ...] = ()
    """ARNs of IAM roles and users that administer the cluster with kubectl; without any, only `cdk deploy` can."""
    alarm_email: str = ""
    """Who gets a mail when an alarm goes off; nobody where it is empty."""
    build_images: str = "docker"
    """Where container images are built: `docker` on this machine, or `codebuild`."""
    pipeline_role: str | None = None
    """ARN of the role with which a pipeline works inside the cluster."""
    permissions_boundary: str = ""
    """Name of the policy that bounds every role."""
    kms_key: str = ""
    """ARN of a KMS key for buckets, Kubernetes secrets, notices and logs; without one keys are made."""
    log_days: int = 90
    """How long log groups keep logs."""
    log_destination: str = ""
    """ARN of a destination of CloudWatch Logs to which every log group sends what it gets."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags on every stack, which CloudFormation puts on what they make, and on instances and disks."""
    workloads: str = "stack"
    """Who applies the manifests: `stack`, with the deployment, or `gitops`, from a repository of the team's own. A setting of
    who deploys, not of the experiment, whose objects are the same either way."""

    def warnings(self, where: str, *, existing: str | None = None) -> list[str]:
        """What follows from empty settings, and from those that an existing cluster has no use for, a line each."""
        found = []
        if existing and self.admins:
            found.append(
                f"{where}: admins is not used, because {existing} is an existing cluster; its owner decides who administers it"
            )
        if not (existing or self.admins):
            found.append(
                f"{where}: admins is empty, so no one can use kubectl, ./trnspec run or ./trnspec verify on the cluster; write the "
                "ARN of your IAM role there"
            )
        if not self.alarm_email:
            found.append(
                f"{where}: alarm_email is empty, so no one receives the alarms; write an address there"
            )
        if self.workloads == "gitops":
            found.append(
                f"{where}: workloads is gitops, so no deployment applies the manifests; ./trnspec render --resolved --out DIR "
                "writes them for your GitOps tool"
            )
        return found


def read_deployment(path: Path) -> Lasting:
    """Read and judge; a key that is left out has its default.

    Raises `Misuse` with a line for each problem.
    """
    data = mapping(parse(path), path.name, file=path.name)
    refuse_unknown(data, KEYS, path.name)
    return judge(data, path.name)


def judge(data: Mapping[str, Any], where: str) -> Lasting:
    """The values of `data` under the keys of `KEYS`.

    Raises `Misuse` with a line for each problem.
    """
    problems: list[Finding] = []
    found: dict[str, Any] = {}
    for key in KEYS:
        place = f"{where}: {key}"
        try:
            if key in data:
                found[key] = _READERS[key](data[key], place)
            if key == "pipeline_role" and found.get(key) in found.get("admins", ()):
                raise Misuse(
                    f"{place} = {found[key]!r}: is among the admins too, and EKS allows one access entry for each principal; remove it "
                    "from one of the two"
                )
        except Misuse as error:
            problems += error.findings
    if problems:
        raise Misuse(*problems)
    return Lasting(**found)


def _principals(value: Any, where: str) -> tuple[str, ...]:
    if value is not None and not isinstance(value, list):
        raise Misuse(
            f"{where} = {value!r}: is not a list; write each ARN on a line of its own, after a hyphen"
        )
    if len(value or ()) > _MOST_ADMINS:
        raise Misuse(
            f"{where}: has {len(value or ()):,} entries, and a stack of CloudFormation has room for {_MOST_ADMINS}; name a role that "
            "they assume"
        )
    return tuple(dict.fromkeys(_principal(one, f"{where}[{place}]") for place, one in enumerate(value or ())))


def _principal(value: Any, where: str) -> str:
    text = str(value)
    if _PRINCIPAL.fullmatch(text):
        return text
    session = _SESSION.fullmatch(text)
    remedy = (
        f"write the ARN of its role (aws iam get-role --role-name {session[1]} --query Role.Arn)"
        if session
        else "write one like arn:aws:iam::111122223333:role/name"
    )
    raise Misuse(f"{where} = {value!r}: is not the ARN of an IAM role or user; {remedy}")


def _text(pattern: str, what: str, example: str) -> Callable[[Any, str], str]:
    """A text of this form, or none."""

    def read(value: Any, where: str) -> str:
        text = str(value or "").strip()
        if text and not re.fullmatch(pattern, text):
            raise Misuse(f"{where} = {text!r}: is not {what}; write one like {example}")
        return text

    return read


def _account(value: Any, where: str) -> str:
    if value in ("", None) or (isinstance(value, str) and re.fullmatch(r"[0-9]{12}", value)):
        return value or ""
    raise Misuse(f'{where} = {value!r}: is not twelve digits in quotes; write it like "111122223333"')


def _one_of(names: tuple[str, ...], does: str) -> Callable[[Any, str], str]:
    def read(value: Any, where: str) -> str:
        if value not in names:
            raise Misuse(f"{where} = {value!r}: {does} nothing; write {' or '.join(names)}")
        return str(value)

    return read


def _days(value: Any, where: str) -> int:
    if isinstance(value, str):
        raise Misuse(f"{where} = {value!r}: is a text; write a number, without quotes")
    if type(value) is not int or value not in _RETENTIONS:
        known = ", ".join(map(str, _RETENTIONS))
        raise Misuse(f"{where} = {value!r}: CloudWatch keeps no logs for so long; use one of {known}")
    return value


def _tags(value: Any, where: str) -> dict[str, str]:
    """As most services of AWS take them (https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html)."""
    if not isinstance(value or {}, dict):
        raise Misuse(f'{where} = {value!r}: has no keys and values; write them like {{cost-center: "4711"}}')
    for key, text in (value or {}).items():
        written = isinstance(key, str) and isinstance(text, str)
        if not (written and _TAG_KEY.fullmatch(key) and _TAG.fullmatch(text)):
            raise Misuse(
                f"{where}: {key!r} = {text!r}: is not a tag; write texts of letters, digits, spaces and _.:/=+-@, numbers in "
                "quotes; `experiment`, `Name` and what begins with aws: are taken"
            )
    return dict(value or {})


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "account": _account,
    "admins": _principals,
    "alarm_email": _text(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+", "a mail address", "team@example.com"),
    "build_images": _one_of(BUILDERS, "builds"),
    "pipeline_role": lambda value, where: _principal(value, where) if value else None,
    "permissions_boundary": _text(
        r"(?a)[\w+=,.@-]{1,128}", "the name of an IAM policy", "speculation-boundary"
    ),
    "kms_key": _text(
        rf"{_IN_REGION.format('kms')}key/[a-z0-9-]+",
        "the ARN of a KMS key",
        "arn:aws:kms:us-east-2:111122223333:key/0a1b2c3d-..., not of an alias",
    ),
    "log_days": _days,
    "log_destination": _text(
        rf"{_IN_REGION.format('logs')}destination:[^:*]+",
        "the ARN of a destination of CloudWatch Logs",
        "arn:aws:logs:us-east-2:111122223333:destination:central",
    ),
    "tags": _tags,
    "workloads": _one_of(APPLIERS, "applies"),
}
KEYS = tuple(_READERS)
CONVENTIONS = ("kms_key", "log_days", "log_destination", "tags")
"""What an account wants of everything that is made in it."""


def refuse_elsewhere(lasting: Lasting, experiment: Experiment, where: str) -> None:
    """`Misuse` for what AWS would not take: a key or a destination in another region than the experiment; and, where the account
    is known, what must be in it and is of another one. A destination of logs is often in an account of its own."""
    region, account, serve = experiment.cluster.region, lasting.account, experiment.serve
    problems = [
        Finding(f"{where}: {name}", arn, f"is not in {region}, the experiment's region", "name one that is")
        for name in ("kms_key", "log_destination")
        if (arn := getattr(lasting, name)) and arn.split(":")[3] != region
    ]
    named = [("kms_key", lasting.kms_key), ("pipeline_role", lasting.pipeline_role)]
    named += [(f"admins[{place}]", arn) for place, arn in enumerate(lasting.admins)]
    own = [(f"{where}: {name}", arn) for name, arn in named]
    own.append((f"{experiment.name}: serve.certificate_arn", serve.certificate_arn if serve else None))
    problems += [
        Finding(place, arn, f"is not of account {account}, which this deploys to", "name one that is")
        for place, arn in own
        if account and arn and arn.split(":")[4] != account
    ]
    if problems:
        raise Misuse(*problems)


def parse(path: Path) -> Any:
    """What a YAML file holds. Raises `Misuse` with one line, or one for each key that appears twice."""
    try:
        data, lines, doubled = read_yaml(path, longest=_LONGEST)
    except Misuse as error:
        remedy = f"fix it, or start from the committed {path.name}"
        raise Misuse(*(replace(one, where=str(path), remedy=remedy) for one in error.findings)) from None
    if doubled:
        raise Misuse(*(replace(one, where=f"{path}:{lines[one.where]}: {one.where}") for one in doubled))
    return data


def mapping(value: Any, where: str, *, file: str) -> Mapping[str, Any]:
    """`value`, which must be keys and values."""
    if not isinstance(value, dict):
        raise Misuse(f"{where} = {value!r}: has no keys and values; see the committed {file}")
    return value


def refuse_unknown(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """`Misuse` for an unknown key."""
    for key in data:
        if key not in known:
            raise Misuse(f"{where}: {key!r} is not a key; use {', '.join(known)}")
