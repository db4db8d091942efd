"""`deployment.yaml`: the settings that stay between deployments. It is read by default, so that no setting is forgotten."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from cdk8s_charts.manifests import ManifestFile
from trnspec.core.findings import Finding, Misuse
from trnspec.core.yaml_file import read_yaml
from trnspec.experiment import Experiment

NAME = "deployment.yaml"
_MAX_VALUE_LENGTH = 300


def matching(pattern: str, what: str, remedy: str = "") -> BeforeValidator:
    """Return a validator of strings that match the pattern; its error names `what` they are, and a remedy."""

    def check(value: Any) -> str:
        text = value.strip() if isinstance(value, str) else ""
        if not re.fullmatch(pattern, text, re.ASCII) or not isinstance(value, str):
            raise ValueError(f"is not {what}" + (f"; {remedy}" if remedy else ""))
        return text

    return BeforeValidator(check)


Account = Annotated[str, matching(r"\d{12}", "twelve digits in quotes", 'write one like "111122223333"')]
_Principal = Annotated[
    str,
    # EKS admits no service-linked role (https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html).
    matching(
        r"arn:aws[a-z-]*:iam::\d{12}:(role(?!/aws-service-role/)|user)/[\w+=,.@/-]+",
        "the ARN of an IAM role or user",
        "write one like arn:aws:iam::111122223333:role/name (aws iam get-role --role-name NAME --query Role.Arn)",
    ),
]
Admins = Annotated[
    tuple[_Principal, ...],
    # Each is a resource, of which a stack has 500 at most
    # (https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html).
    Field(max_length=100),
    AfterValidator(lambda admins: tuple(dict.fromkeys(admins))),
]
Email = Annotated[
    str, matching(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+", "a mail address", "write one like team@example.com")
]
_Policy = Annotated[str, matching(r"[\w+=,.@-]{1,128}", "the name of an IAM policy")]
_Key = Annotated[
    str,
    matching(
        r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[a-z0-9-]+",
        "the ARN of a KMS key",
        "write one like arn:aws:kms:us-east-2:111122223333:key/0a1b2c3d-..., not of an alias",
    ),
]
_Destination = Annotated[
    str,
    matching(
        r"arn:aws[a-z-]*:logs:[a-z0-9-]+:\d{12}:destination:[^:*]+",
        "the ARN of a destination of CloudWatch Logs",
        "write one like arn:aws:logs:us-east-2:111122223333:destination:central",
    ),
]
_Days = Literal[
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
]  # fmt: skip
"""https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html"""
_Retention = Annotated[_Days, BeforeValidator(lambda days: str(days) if isinstance(days, bool) else days)]
"""`true` equals 1 for Python."""
_TAG_REMEDY = "write texts of letters, digits, spaces and _.:/=+-@, numbers in quotes; `experiment`, `Name` and what begins with aws: are taken"
# As most services of AWS take them: https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
_TAG = r"(?u:[\w .:/=+@-])"
_TagKey = Annotated[
    str, matching(rf"(?!(?i:aws:)|experiment\Z|Name\Z){_TAG}{{1,128}}", "the key of a tag", _TAG_REMEDY)
]
_TagValue = Annotated[str, matching(rf"{_TAG}{{0,256}}", "the value of a tag", _TAG_REMEDY)]


class Section(BaseModel):
    """A section of a settings file; unknown keys are refused, and an empty value means the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: Any) -> Any:
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
    log_days: _Retention = 90
    """How long log groups keep logs."""
    log_destination: _Destination = ""
    """ARN of a destination of CloudWatch Logs to which every log group sends what it gets."""
    tags: dict[_TagKey, _TagValue] = {}
    """Tags on every stack, which CloudFormation puts on what they make, and on instances and disks."""


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


@dataclass(frozen=True, kw_only=True)
class DeployedExperiment:
    """What the stacks of one experiment are made of."""

    experiment: Experiment
    files: tuple[ManifestFile, ...]
    """The manifests as they were reviewed, in apply order."""
    settings: Settings


KEYS = tuple(DeploymentSettings.model_fields)
_Model = TypeVar("_Model", bound=Section)


def read_deployment(path: Path) -> DeploymentSettings:
    """Read the settings. Raises `Misuse` with one line for each problem."""
    return validated(DeploymentSettings, parse(path), path.name)


def validated(model: type[_Model], data: Any, file: str) -> _Model:
    """Return the validated content of `file`. Raises `Misuse` with one line for each problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Misuse(*(_problem(dict(one), file) for one in error.errors(include_url=False))) from None


def _problem(detail: dict[str, Any], file: str) -> Finding:
    """Return a finding for an error of pydantic."""
    keys = [key for key in detail["loc"] if key != "[key]"]
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    place, see = f"{file}: {path}" if path else file, f"see the committed {file}"
    if detail["type"] in ("missing", "extra_forbidden"):
        why = "is missing" if detail["type"] == "missing" else "is not a key"
        return Finding(place, None, why, see)
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = re.sub("a valid dictionary.*", "keys and values", message).replace("a valid tuple", "a list")
    why, _, remedy = message.partition("; ")
    value = detail["input"] if len(str(detail["input"])) <= _MAX_VALUE_LENGTH else None
    return Finding(place, value, why[0].lower() + why[1:], remedy or see)


def refuse_elsewhere(settings: Settings, experiment: Experiment, where: str) -> None:
    """Raise `Misuse` for settings that AWS would refuse: a key or a destination in another region than the experiment and, if the
    account is known, resources of another account. A destination of logs may be in another account."""
    region, account = experiment.cluster.region, settings.account
    problems = [
        Finding(f"{where}{name}", arn, f"is not in {region}, the experiment's region", "name one that is")
        for name in ("kms_key", "log_destination")
        if (arn := getattr(settings, name)) and arn.split(":")[3] != region
    ]
    own = [("kms_key", settings.kms_key)]
    own += [(f"admins[{place}]", arn) for place, arn in enumerate(settings.admins)]
    problems += [
        Finding(
            f"{where}{name}", arn, f"is not of account {account}, which this deploys to", "name one that is"
        )
        for name, arn in own
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
