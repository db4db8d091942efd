"""The pipeline's CDK app: `.venv/bin/npx cdk deploy --app '.venv/bin/python pipeline.py' pipeline` (docs/pipeline.md)."""

import sys

from experiment import InvalidExperiment
from infra import InfraError
from infra.pipeline.app import build_pipeline


def main() -> int:
    try:
        build_pipeline().synth()
    except (InvalidExperiment, InfraError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


sys.exit(main())
