"""How the pipeline publishes assets: with the library behind `cdk-assets`, pinned.

CDK Pipelines installs whatever npm calls the latest `cdk-assets`, one build an asset. 4.7.3 refuses what the pinned library
writes ("Maximum schema version supported is 54.x.x, but found 55.0.0"); `cdk publish-assets` reads it, but as the role that
may deploy, which nothing before the approval should be. The library takes on the publishing roles alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from aws_cdk import aws_codebuild as codebuild

from infra.pipeline.steps import RUNTIMES

if TYPE_CHECKING:
    from constructs import Construct

LIBRARY = "@aws-cdk/cdk-assets-lib@1.5.0"
PROGRAM = Path(__file__).with_name("publish_assets.js")
_FOLDER = "publish"


def publish_with_library(scope: Construct) -> None:
    """Give the builds of the Assets stage below `scope` our commands, once the pipeline is built."""
    for found in scope.node.find_all():
        if isinstance(found, codebuild.CfnProject) and "/Assets/" in found.node.path:
            found.add_property_override("Source.BuildSpec", json.dumps(build_spec(), indent=1))


def build_spec() -> dict[str, object]:
    """Run in the folder of the cloud assembly."""
    text = PROGRAM.read_text(encoding="utf-8")
    return {
        "version": "0.2",
        "phases": {
            "install": {
                **RUNTIMES["phases"]["install"],
                "commands": [f"npm install --no-audit --no-fund --prefix {_FOLDER} {LIBRARY}"],
            },
            "build": {
                "commands": [
                    f"printf '%s' '{text}' > {_FOLDER}/publish_assets.js",
                    f"node {_FOLDER}/publish_assets.js .",
                ]
            },
        },
    }
