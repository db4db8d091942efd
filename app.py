"""The CDK app: `cdk synth` and `cdk deploy` run it (see cdk.json), and so does `python app.py`."""

import gc
import json
import os
import sys

gc.disable()  # nearly everything made here lives until the end; looking for garbage takes a fifth of the time

from experiment import InvalidExperiment  # noqa: E402
from infra import InfraError, build_app  # noqa: E402


def main() -> int:
    context = json.loads(os.environ.get("CDK_CONTEXT_JSON", "{}"))  # what `cdk -c key=value` says
    try:
        build_app(context=context).synth()
    except (InvalidExperiment, InfraError) as error:
        print(error, file=sys.stderr)
        return 2
    gc.freeze()  # or the interpreter would look once more, on its way out
    return 0


sys.exit(main())
