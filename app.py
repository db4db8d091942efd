"""The CDK app: `cdk synth` and `cdk deploy` run it (see cdk.json), and so does `python app.py`.

A rehearsal names another file than deployment.yaml: `python app.py FILE`.
"""

import gc
import json
import os
import sys
from pathlib import Path

gc.disable()  # nearly everything made here lives until the end; looking for garbage takes a fifth of the time

from infra.synthesis import DEPLOYMENT, app_of, configure, synthesize  # noqa: E402
from trnspec.core.findings import Misuse  # noqa: E402


def main() -> int:
    deployment = Path(sys.argv[1]) if len(sys.argv) > 1 else DEPLOYMENT
    context = json.loads(os.environ.get("CDK_CONTEXT_JSON") or "{}")  # from `cdk -c key=value`
    try:
        configuration = configure(context, deployment=deployment)
        for line in configuration.settings.warnings(deployment.name):
            print(line, file=sys.stderr)
        code = synthesize(app_of(configuration))
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    gc.freeze()  # or the interpreter would look once more, on its way out
    return code


sys.exit(main())
