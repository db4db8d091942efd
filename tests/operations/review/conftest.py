"""Snapshots of the reference experiment, as it is and after an edit; rendered for real, compared as plain data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.render import render
from trnspec.experiment import Experiment, load
from trnspec.operations.review.snapshot import described

State = dict[str, Any]
Edit = Callable[[dict[str, Any]], object]
ROLE = {
    "Type": "AWS::IAM::Policy",
    "Properties": {
        "Roles": [{"Ref": "ServingRole"}],
        "PolicyDocument": {
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": "s3:GetObject",
                    "Resource": {"Fn::Join": ["", [{"Ref": "B"}, "/*"]]},
                }
            ]
        },
    },
}
PIPELINE = {"Type": "AWS::CodePipeline::Pipeline", "Properties": {"Stages": [{"Name": "Approve"}]}}


def state_of(experiment: Experiment) -> State:
    """As `snapshot.py` describes a tree whose manifests are fresh; templates as small as the questions need."""
    name = experiment.name
    objects = {file.name: [dict(item) for item in file.objects] for file in render(experiment)}
    templates = {
        f"{name}-identity": {"Resources": {"Serving": ROLE}},
        f"{name}-storage": {"Resources": {"Artifacts": {"Type": "AWS::S3::Bucket", "Properties": {}}}},
        f"{name}-nodes": {
            "Resources": {"Group": {"Type": "AWS::EKS::Nodegroup", "Properties": {"AmiType": "A"}}}
        },
    }
    state = {
        "experiments": {name: described(experiment, objects)},
        "objects": {name: objects},
        "templates": templates,
        "delivery": {"pipeline": {"Resources": {"Pipeline": PIPELINE}}},
        "problems": [],
    }
    return copy.deepcopy(state)


@pytest.fixture(scope="session")
def _base(reference: Experiment) -> State:
    return state_of(reference)


@pytest.fixture
def base(_base: State) -> State:
    """The reference experiment, free to be edited."""
    return copy.deepcopy(_base)


@pytest.fixture
def head(base: State) -> State:
    """The same, to be edited into what is compared with it."""
    return copy.deepcopy(base)


@pytest.fixture
def edited(variation: Callable[[Edit], Path]) -> Callable[[Edit], State]:
    """The reference experiment after an edit of its file, loaded and rendered."""
    return lambda edit: state_of(load(variation(edit)))
