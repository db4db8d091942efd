"""The pipeline's CDK app: `.venv/bin/npx cdk deploy --app '.venv/bin/python pipeline.py' pipeline` (docs/pipeline.md)."""

import gc
import sys

gc.disable()  # as in app.py

from infra.pipeline.pipeline_file import read_pipeline  # noqa: E402
from infra.synthesis import pipeline_app, synthesize  # noqa: E402
from trnspec.core.findings import Misuse  # noqa: E402


def main() -> int:
    try:
        code = synthesize(pipeline_app(read_pipeline()))
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    gc.freeze()
    return code


sys.exit(main())
