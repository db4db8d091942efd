"""What the pipeline's builds run that deploy or publish: installed with `npm ci` from lock files that travel in the assembly.

CDK Pipelines installs the command line by version alone, and whatever npm calls the latest `cdk-assets`, one build an asset.
4.7.3 refuses what the pinned library writes ("Maximum schema version supported is 54.x.x, but found 55.0.0"); `cdk
publish-assets` reads it, but as the role that may deploy, which nothing before the approval should be. The library behind
`cdk-assets` takes on the publishing roles alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aws_cdk import aws_codebuild as codebuild

from infra.pipeline.steps import CLI_FOLDER, PUBLISH_FOLDER, RUNTIMES

if TYPE_CHECKING:
    from constructs import Construct

_COMMANDS = {
    "/UpdatePipeline/": (
        CLI_FOLDER,
        "cli/node_modules/.bin/cdk -a . deploy {stack} --require-approval=never --verbose",
    ),
    "/Assets/": (PUBLISH_FOLDER, "node publish/publish_assets.js ."),
}
"""By the place of a project below the pipeline: the folder of its lock file, and what it runs."""


def install_from_locks(stack: Construct) -> None:
    """Give the builds of these stages our commands, once the pipeline of this stack is built."""
    for found in stack.node.find_all():
        if not isinstance(found, codebuild.CfnProject):
            continue
        for place, (folder, command) in _COMMANDS.items():
            if place in found.node.path:
                spec = build_spec(folder, command.format(stack=stack.node.path))
                found.add_property_override("Source.BuildSpec", json.dumps(spec, indent=1))


def build_spec(folder: str, command: str) -> dict[str, object]:
    """Run in the folder of the cloud assembly. No package may run a program of its own while it is installed."""
    return {
        "version": "0.2",
        "phases": {
            "install": {
                **RUNTIMES["phases"]["install"],
                "commands": [f"npm ci --ignore-scripts --no-audit --no-fund --prefix {folder}"],
            },
            "build": {"commands": [command]},
        },
    }
