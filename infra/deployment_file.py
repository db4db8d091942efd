"""`deployment.yaml`: the settings that stay between deployments. It is read by default, so that no setting is forgotten."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from trnspec.core.findings import Finding, Misuse
from trnspec.core.words import listed
from trnspec.core.yaml_file import read_yaml
from trnspec.experiment import Experiment

NAME = "deployment.yaml"
_MAX_VALUE_LENGTH = 300
MAX_ADMINS = 100
"""Each is a resource, of which a stack has 500 at most (https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html)."""
_SESSION = re.compile(r"arn:aws[a-z-]*:sts::[0-9]{12}:assumed-role/([\w+=,.@-]+)/.*")


_ARN, _EXAMPLE = "the ARN of an IAM role or user", "arn:aws:iam::111122223333:role/name"
_TAG_REMEDY = "write texts of letters, digits, spaces and _.:/=+-@, numbers in quotes; `experiment`, `Name` and what begins with aws: are taken"


def form(pattern: str, what: str, *examples: object) -> Any:
    """Return a field for a string that matches the pattern."""
    return Field(pattern=rf"(?a)^(?:{pattern})\Z", description=what, examples=list(examples))


Account = Annotated[str, form(r"\d{12}", "twelve digits in quotes", '"111122223333"')]
Principal = Annotated[
    str,
    # EKS admits no service-linked role (https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html).
    form(
        r"arn:aws[a-z-]*:iam::\d{12}:(role(?!/aws-service-role/)|user)/[\w+=,.@/-]+",
        _ARN,
        _EXAMPLE,
    ),
]
Admins = Annotated[
    tuple[Principal, ...], Field(description="a list of ARNs, each on a line of its own, after a hyphen")
]
Email = Annotated[str, form(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+", "a mail address", "team@example.com")]
_Policy = Annotated[str, form(r"[\w+=,.@-]{1,128}", "the name of an IAM policy", "speculation-boundary")]
_Key = Annotated[
    str,
    form(
        r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[a-z0-9-]+",
        "the ARN of a KMS key",
        "arn:aws:kms:us-east-2:111122223333:key/0a1b2c3d-..., not of an alias",
    ),
]
_Destination = Annotated[
    str,
    form(
        r"arn:aws[a-z-]*:logs:[a-z0-9-]+:\d{12}:destination:[^:*]+",
        "the ARN of a destination of CloudWatch Logs",
        "arn:aws:logs:us-east-2:111122223333:destination:central",
    ),
]
_RETENTIONS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
"""https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html"""
# As most services of AWS take them: https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
_TagKey = Annotated[str, Field(pattern=r"^(?!(?i:aws:)|experiment\Z|Name\Z)[\w .:/=+@-]{1,128}\Z")]
_TagValue = Annotated[str, Field(pattern=r"^[\w .:/=+@-]{0,256}\Z")]


class Section(BaseModel):
    """A section of a settings file; unknown keys are refused, and an empty value means the default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, regex_engine="python-re"
    )

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            key: value
            for key, value in data.items()
            if key not in cls.model_fields or value not in (None, "", [])
        }


class Settings(Section):
    """Settings that stay between deployments, in `deployment.yaml` and in each stage of a pipeline."""

    account: Account = ""
    """Id of the account that this deploys to; that of the credentials where it is empty."""
    admins: Admins = ()
    """ARNs of IAM roles and users that administer the cluster with kubectl; without any, only `cdk deploy` can."""
    alarm_email: Email = ""
    """Who gets a mail when an alarm goes off; nobody where it is empty."""
    kms_key: _Key = ""
    """ARN of a KMS key for buckets, Kubernetes secrets, notices and logs; without one keys are made."""
    log_days: StrictInt = Field(default=90, description="a number of days, without quotes", examples=[90])
    """How long log groups keep logs."""
    log_destination: _Destination = ""
    """ARN of a destination of CloudWatch Logs to which every log group sends what it gets."""
    tags: dict[_TagKey, _TagValue] = Field(
        default={}, description='keys and values like {cost-center: "4711"}'
    )
    """Tags on every stack, which CloudFormation puts on what they make, and on instances and disks."""

    @field_validator("admins")
    @classmethod
    def _once(cls, admins: tuple[str, ...]) -> tuple[str, ...]:
        if len(admins) > MAX_ADMINS:
            raise ValueError(
                f"has {len(admins):,} entries, and a stack of CloudFormation has room for {MAX_ADMINS}; name a role that they assume"
            )
        return tuple(dict.fromkeys(admins))

    @field_validator("log_days")
    @classmethod
    def _kept(cls, days: int) -> int:
        if days not in _RETENTIONS:
            raise ValueError(
                f"CloudWatch keeps no logs for so long; use one of {', '.join(map(str, _RETENTIONS))}"
            )
        return days


class DeploymentSettings(Settings):
    permissions_boundary: _Policy = ""
    """Name of the policy that bounds every role."""

    def warnings(self, where: str) -> list[str]:
        """Return one line for each empty setting with a consequence."""
        lines = {
            "admins is empty, so no one can use kubectl, ./trnspec run or ./trnspec verify on the cluster; write the ARN of your IAM "
            "role there": not self.admins,
            "alarm_email is empty, so no one receives the alarms; write an address there": not self.alarm_email,
        }
        return [f"{where}: {line}" for line, applies in lines.items() if applies]


KEYS = tuple(DeploymentSettings.model_fields)
_Model = TypeVar("_Model", bound=Section)


def read_deployment(path: Path) -> DeploymentSettings:
    """Read the settings. Raises `Misuse` with one line for each problem."""
    return validated(DeploymentSettings, parse(path), path.name, file=path.name)


def validated(model: type[_Model], data: Any, where: str, *, file: str) -> _Model:
    """Return the validated section of `file` at `where`. Raises `Misuse` with one line for each problem."""
    if not isinstance(data, dict):
        raise Misuse(f"{where} = {data!r}: has no keys and values; see the committed {file}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    if unknown := [repr(one["loc"][0]) for one in details if one["loc"][0] not in model.model_fields]:
        wrong = f"{listed(unknown, max_names=3)} {'are not keys' if unknown[1:] else 'is not a key'}"
        raise Misuse(f"{where}: {wrong}; use {', '.join(model.model_fields)}")
    problems = [_problem(dict(one), where, model) for one in details]
    # pydantic reports a problem for each alternative of a value; one is enough.
    raise Misuse(*{one.where or one.why: one for one in problems}.values())


def _problem(detail: dict[str, Any], where: str, model: type[Section]) -> Finding:
    """Return a finding for an error of pydantic, with the description and the example of the field."""
    key, *inner = detail["loc"]
    kind, value = detail["type"], detail["input"]
    field, place = model.model_fields[key], f"{where}: {key}"
    what, examples = field.description, field.examples or []
    if kind == "missing":
        return Finding(place, None, "is missing", f"write {what}")
    if kind == "value_error":
        why, _, remedy = str(detail["ctx"]["error"]).partition("; ")
        return Finding(place, value if len(str(value)) <= _MAX_VALUE_LENGTH else None, why, remedy)
    if key == "tags" and inner:
        why = f"{place}: {inner[0]!r}" + (
            ": is not the key of a tag" if inner[1:] else f" = {value!r}: is not a tag"
        )
        return Finding("", None, why, _TAG_REMEDY)
    if key == "admins" and inner:
        place, what, examples = f"{place}[{inner[0]}]", _ARN, [_EXAMPLE]
    if what == _ARN and (session := _SESSION.fullmatch(str(value))):
        remedy = f"write the ARN of its role (aws iam get-role --role-name {session[1]} --query Role.Arn)"
        return Finding(place, value, f"is not {what}", remedy)
    return Finding(place, value, f"is not {what}", f"write one like {examples[0]}" if examples else "")


def refuse_elsewhere(settings: DeploymentSettings, experiment: Experiment, where: str) -> None:
    """Raise `Misuse` for settings that AWS would refuse: a key or a destination in another region than the experiment and, if the
    account is known, resources of another account. A destination of logs may be in another account."""
    region, account = experiment.cluster.region, settings.account
    problems = [
        Finding(f"{where}: {name}", arn, f"is not in {region}, the experiment's region", "name one that is")
        for name in ("kms_key", "log_destination")
        if (arn := getattr(settings, name)) and arn.split(":")[3] != region
    ]
    own = [(f"{where}: kms_key", settings.kms_key)]
    own += [(f"{where}: admins[{place}]", arn) for place, arn in enumerate(settings.admins)]
    problems += [
        Finding(place, arn, f"is not of account {account}, which this deploys to", "name one that is")
        for place, arn in own
        if account and arn and arn.split(":")[4] != account
    ]
    if problems:
        raise Misuse(*problems)


def parse(path: Path) -> Any:
    """Parse a YAML file. Raises `Misuse` with one line, or one for each key that appears twice."""
    try:
        data, lines, doubled = read_yaml(path, max_value_length=_MAX_VALUE_LENGTH)
    except Misuse as error:
        remedy = f"fix it, or start from the committed {path.name}"
        raise Misuse(*(replace(one, where=str(path), remedy=remedy) for one in error.findings)) from None
    if doubled:
        raise Misuse(*(replace(one, where=f"{path}:{lines[one.where]}: {one.where}") for one in doubled))
    return data
