"""`python -m lab.aws ASSEMBLY_DIR --region REGION`: rehearse a synthesized app on loopback and print the account.

Exit code 0 when every resource is accounted for, 1 when a stack failed or a resource is missing, 2 when the folder
cannot be rehearsed, 3 when the loopback server does not work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiment.finding import Refusal


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.aws",
        description="Rehearse a synthesized CDK app on loopback and print what became of every resource.",
    )
    parser.add_argument(
        "assembly", type=Path, metavar="ASSEMBLY_DIR", help="the folder that the app synthesized into"
    )
    parser.add_argument("--region", required=True, help="region to rehearse in, e.g. us-east-2")
    parser.add_argument("--account", help="account to rehearse in; a made-up one by default")
    options = parser.parse_args(arguments)
    print(f"loading moto, then deploying {options.assembly} into it on loopback", file=sys.stderr)
    try:
        lines = _rehearse(options)
    except Refusal as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print("\n".join(lines))
    return 0


def _rehearse(options: argparse.Namespace) -> Sequence[str]:
    os.environ.pop("AWS_PROFILE", None)  # moto cannot be imported with an unknown one, and uses nothing of it
    from lab.aws.moto_server import DEFAULT_ACCOUNT
    from lab.aws.printing import account_lines  # after the options: moto takes seconds to import
    from lab.aws.rehearsal import rehearse

    account = options.account or DEFAULT_ACCOUNT
    return account_lines(rehearse(options.assembly, region=options.region, account=account))


if __name__ == "__main__":
    sys.exit(main())
