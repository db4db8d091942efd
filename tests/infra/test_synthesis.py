"""What a synth is told, and `python app.py` as the CDK command line runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.deployment_file import KEYS, DeploymentSettings, read_deployment, refuse_elsewhere
from infra.synthesis import DEPLOYMENT, app_of, configure
from tests.infra.conftest import ADMIN, DESTINATION, KEY, SECOND_ADMIN
from tests.infra.templates import ACCOUNT, Deployment, Deployments, json_of, resolved
from trnspec.core.checkout import ROOT
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment
from trnspec.experiment.model import Network

BOUNDARY = "@aws-cdk/core:permissionsBoundary"
WRITTEN: dict[str, Any] = {
    "admins": [ADMIN, "arn:aws:iam::111122223333:user/eve"],
    "alarm_email": "team@example.com",
    "permissions_boundary": "bounds",
    "kms_key": KEY,
    "log_days": 365,
    "log_destination": DESTINATION,
    "tags": {"cost-center": "4711", "Owner": ""},
}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], DeploymentSettings]:
    """What is read from a deployment.yaml with this text."""

    def read(text: str) -> DeploymentSettings:
        path = tmp_path / "deployment.yaml"
        path.write_text(text, encoding="utf-8")
        return read_deployment(path)

    return read


def test_the_committed_files_name_the_reference_experiment_and_nobody_and_nothing_to_warn_of() -> None:
    configuration = configure({})
    assert (configuration.experiment.name, configuration.settings) == ("qwen3-32b", DeploymentSettings())
    assert yaml.safe_load(DEPLOYMENT.read_text(encoding="utf-8")).keys() == {*KEYS}
    context = configuration.context
    assert context["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
    assert context["@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy"] is True
    assert BOUNDARY not in context
    assert not [key for key in context if key.startswith("aws:")], (
        "the command line warns of what is reserved"
    )


def test_who_leaves_the_file_empty_reads_what_follows() -> None:
    admins, alarms = DeploymentSettings().warnings("deployment.yaml")
    assert admins.startswith("deployment.yaml: admins is empty, so no one can use kubectl")
    assert alarms.startswith("deployment.yaml: alarm_email is empty, so no one receives the alarms")
    full = DeploymentSettings(admins=(ADMIN,), alarm_email="team@example.com")
    assert full.warnings("x") == []


def test_what_must_last_is_not_taken_from_the_command_line() -> None:
    """The next plain `cdk deploy --all` would take it back, and lock the administrators out."""
    for key in KEYS:
        line = f"^context {key}: the next .* would not know it; write {key} into deployment.yaml instead of -c {key}=$"
        with pytest.raises(Misuse, match=line):
            configure({key: ADMIN})


def test_everything_that_lasts_is_read_from_the_file_and_the_guide_shows_settings_that_are_read(
    settings: Callable[[str], DeploymentSettings], tmp_path: Path
) -> None:
    found = settings(yaml.safe_dump({**WRITTEN, "admins": [*WRITTEN["admins"], ADMIN]}))
    assert found == DeploymentSettings(**WRITTEN | {"admins": tuple(WRITTEN["admins"])})
    file = tmp_path / "deployment.yaml"
    assert configure({}, deployment=file).context[BOUNDARY] == {"name": "bounds"}, "CDK's own form"
    region = r"kms_key = .*: is not in ap-southeast-4, the experiment's region; name one that is"
    with pytest.raises(Misuse, match=region):
        configure({"experiment": "experiments/vicuna-7b.yaml"}, deployment=file)
    shown = settings(_of_the_guide(1))
    assert Network.model_validate(yaml.safe_load(_of_the_guide(0))["cluster"]["network"]).vpc
    for key in ("kms_key", "log_days", "log_destination", "tags"):
        assert getattr(shown, key) != getattr(DeploymentSettings(), key)


WRONG: list[dict[str, str]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())[
    "deployment"
]
MANY = {
    "file": "admins:\n" + "".join(f"- {ADMIN}{number}\n" for number in range(10_000)),
    "line": "admins: tuple should have at most 100 items",
}


@pytest.mark.parametrize("case", [*WRONG, MANY], ids=lambda case: case["file"][:40])
def test_a_wrong_value_is_one_line(
    settings: Callable[[str], DeploymentSettings], case: dict[str, str]
) -> None:
    with pytest.raises(Misuse) as caught:
        settings(case["file"])
    assert case["line"] in str(caught.value)
    assert "\n" not in str(caught.value)


OTHER = "222233334444"


def test_what_belongs_to_another_account_than_is_deployed_to_is_refused(reference: Experiment) -> None:
    """Only a destination of logs is often in an account of its own."""
    admins = (ADMIN.replace(ACCOUNT, OTHER), SECOND_ADMIN)
    settings = DeploymentSettings(log_destination=DESTINATION, kms_key=KEY, admins=admins)
    with pytest.raises(Misuse) as caught:
        refuse_elsewhere(settings.model_copy(update={"account": OTHER}), reference, "file: ")
    places = ("file: kms_key", "file: admins[1]")
    for line, where in zip(str(caught.value).splitlines(), places, strict=True):
        assert line.startswith(f"{where} = 'arn:")
        assert line.endswith(f"is not of account {OTHER}, which this deploys to; name one that is")
    refuse_elsewhere(settings.model_copy(update={"account": ACCOUNT, "admins": ()}), reference, "file: ")


def test_a_named_account_is_that_of_every_stack_and_changes_nothing_else(
    made: Deployments, tmp_path: Path
) -> None:
    """`cdk deploy` then refuses other credentials by itself; nothing is looked up, so any machine can synthesize."""
    path = tmp_path / "deployment.yaml"
    path.write_text(f'account: "{ACCOUNT}"\n', encoding="utf-8")
    app_of(configure({}, deployment=path), outdir=str(tmp_path / "out"), validation=False).synth()
    named = Deployment.read(tmp_path / "out")
    assert {one["environment"] for one in named.artifacts.values()} == {f"aws://{ACCOUNT}/us-east-2"}
    assert "missing" not in json_of(tmp_path / "out" / "manifest.json")
    ordered = partial(json.loads, object_hook=_in_order)
    for one in (named, made.reference):  # CDK puts texts that a token is in before others
        one.templates["run"] = ordered(json.dumps(resolved(one.templates["run"])))
    assert resolved(named.templates) == resolved(made.reference.templates)


def _in_order(found: dict[str, Any]) -> dict[str, Any]:
    """A statement with its resources in the order of their names."""
    listed = isinstance(found.get("Resource"), list)
    return {**found, "Resource": sorted(found["Resource"])} if listed else found


def test_every_wrong_setting_is_one_line_and_so_is_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    for experiment, line in (
        ("", "is not a path"),
        (7, "is not a path"),
    ):
        with pytest.raises(Misuse, match=f"{line}.* use -c experiment="):
            configure({"experiment": experiment})
    with pytest.raises(Misuse, match=r"deployment.yaml: cannot be read: .*start from the committed"):
        configure({}, deployment=path)
    path.write_text("admins: [me]\nalarm_email: me\n", encoding="utf-8")
    with pytest.raises(Misuse) as caught:
        configure({}, deployment=path)
    lines = str(caught.value).splitlines()
    assert [what in line for what, line in zip(("admins[0]", "alarm_email"), lines, strict=True)] == [
        True
    ] * 2
    with pytest.raises(Misuse, match="nowhere"):
        configure({"manifests": "nowhere"})


def _run(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_wrong_input_ends_in_one_line_and_exit_2_before_jsii_starts() -> None:
    context = '{"experiment": "nowhere.yaml"}'
    ended = _run({"CDK_CONTEXT_JSON": context, "JSII_NODE": str(ROOT / "no-such-node")})
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("nowhere.yaml: cannot be read")


def _of_the_guide(number: int) -> str:
    """A block of YAML of yours.md: the network, then the settings."""
    guide = (ROOT / "docs" / "yours.md").read_text(encoding="utf-8")
    return str(re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)[number])


@pytest.mark.slow
def test_cloudformation_validation_has_no_finding_and_two_synths_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    ended = _run({"CDK_VALIDATION": "true", "PYTHONHASHSEED": "1", "CDK_OUTDIR": str(first)})
    assert ended.returncode == 0, ended.stderr
    (report,) = json_of(first / "validation-report.json")["pluginReports"]
    assert (report["pluginName"], report["conclusion"]) == ("CloudFormation Validate", "success")
    assert report["violations"] == []
    varied = {"CDK_VALIDATION": "false", "PYTHONHASHSEED": "2", "AWS_REGION": "eu-west-1"}
    ended = _run({**varied, "CDK_OUTDIR": str(second)})
    assert ended.returncode == 0, ended.stderr
    ours, others = (
        {path.name: path.read_bytes() for path in folder.glob("*.template.json")}
        for folder in (first, second)
    )
    assert len(ours) == 8
    assert ours == others


@pytest.mark.slow
def test_a_value_that_cloudformation_does_not_take_fails_the_synth_with_its_place(
    tmp_path: Path,
) -> None:
    """Of `cdk synth`, as a user runs it, and of the app alone; `cdk synth --no-validation` leaves it out."""
    app = tmp_path / "app.py"
    lines = (
        'import sys; from infra.stacks import nodes; nodes.naming.daily_schedule = lambda _: "every day"',
        'sys.argv = ["app.py"]; exec(open("app.py", encoding="utf-8").read())',
    )
    app.write_text("\n".join(lines), encoding="utf-8")
    python = [sys.executable, str(app)]
    cdk = [str(ROOT / "node_modules/.bin/cdk"), "synth", "--quiet", "--no-notices", "--app", " ".join(python)]
    # Inside pytest the CDK would raise the report instead of printing it.
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "CDK_"))}
    environment = {**own, "PYTHONPATH": str(ROOT), "CDK_OUTDIR": str(tmp_path / "cdk.out")}
    for command, code in (
        (python, 1),
        ([*cdk, "--output", str(tmp_path / "out")], 1),
        ([*cdk, "--no-validation"], 0),
    ):
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        told = ended.stdout + ended.stderr
        assert ended.returncode == code, told
        assert ("every day" in told) == bool(code)
        assert ("qwen3-32b-nodes/TimeToLive/Daily" in told) == bool(code)
        assert "Traceback" not in told
