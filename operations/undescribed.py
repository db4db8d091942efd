"""Stacks that stand and bill, and that no experiment file describes any more: its `name` or `region` was changed, or it is gone.

They are found by the tag of every stack of this project, in every region of the catalogue that the account has enabled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from experiment import InvalidExperiment, load
from experiment.catalogue.regions import ZONES
from operations import stacks
from operations.aws import Aws
from operations.aws_errors import AwsError
from operations.deploying import ROOT

if TYPE_CHECKING:
    from experiment import Experiment

FILES = ROOT / "experiments"
_UNTOLD = "stacks that no file describes were not looked for"


@dataclass(frozen=True, kw_only=True)
class Undescribed:
    """The stacks of one experiment in one region."""

    experiment: str
    region: str
    stacks: tuple[str, ...]

    def line(self) -> str:
        """What it is and how to remove it."""
        return (
            f"{self.experiment} in {self.region}: {len(self.stacks)} stacks stand and bill ({', '.join(self.stacks)}), and no "
            f"file here describes them; remove them with {removal(self.experiment, self.region)}, or take the change of the "
            "file's name or region back"
        )


def removal(name: str, region: str) -> str:
    """The command that takes stacks down without a file."""
    return f"scripts/teardown --name {name} --region {region}"


def find(experiment: Experiment, aws: Aws, *, files: Path = FILES) -> tuple[list[Undescribed], list[str]]:
    """What stands without a file, and a line for each region that could not be looked at."""
    known, names = _described(files)
    known.add((experiment.name, experiment.cluster.region))
    found: list[Undescribed] = []
    untold: list[str] = []
    for region in _regions(aws, untold):
        there = aws if region == aws.region else Aws(region, account=aws.account)
        try:
            standing = stacks.by_experiment(there)
        except AwsError as error:
            untold.append(f"{region}: {_UNTOLD} ({error})")
            continue
        found += [
            Undescribed(experiment=name, region=region, stacks=tuple(sorted(those)))
            for name, those in sorted(standing.items())
            if (name, region) not in known and name not in names
        ]
    return found, untold


def _regions(aws: Aws, untold: list[str]) -> list[str]:
    """Those of the catalogue that the account has enabled: another one refuses its credentials."""
    try:
        enabled = {one["RegionName"] for one in aws.client("ec2").describe_regions()["Regions"]}
    except AwsError as error:
        untold.append(f"other regions: {_UNTOLD} ({error})")
        return [aws.region]
    return sorted({aws.region, *ZONES} & enabled)


def _described(files: Path) -> tuple[set[tuple[str, str]], set[str]]:
    """Name and region of every experiment; and the names of files that are refused at present, which may be anywhere."""
    known, names = set(), set()
    for path in sorted(files.glob("*.yaml")):
        try:
            experiment = load(path)
            known.add((experiment.name, experiment.cluster.region))
        except InvalidExperiment:
            names.add(_name_in(path))
    return known, names


def _name_in(path: Path) -> str:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return path.stem
    return str(data.get("name", path.stem)) if isinstance(data, dict) else path.stem
