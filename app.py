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
from trnspec.core.findings import Finding, Misuse  # noqa: E402


def _context() -> dict[str, object]:
    """What `cdk -c key=value` says. Raises `Misuse`."""
    text = os.environ.get("CDK_CONTEXT_JSON") or "{}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Misuse(
            Finding("CDK_CONTEXT_JSON", text, "is not a JSON object", "unset it, and use cdk -c key=value")
        )
    return found


def main() -> int:
    deployment = Path(sys.argv[1]) if len(sys.argv) > 1 else DEPLOYMENT
    try:
        configuration = configure(_context(), deployment=deployment)
        for line in configuration.settings.warnings(deployment.name):
            print(line, file=sys.stderr)
        region = configuration.experiment.cluster.region
        for name in (
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
        ):  # CDK_DEFAULT_REGION is never empty, whether wanted or not
            if os.environ.get(name, region) != region:
                told = (
                    f"{name} is {os.environ[name]}; this deploys to {region}, the experiment's cluster.region"
                )
                print(told, file=sys.stderr)
        code = synthesize(app_of(configuration))
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    gc.freeze()  # or the interpreter would look once more, on its way out
    return code


sys.exit(main())
