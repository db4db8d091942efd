"""In place of `cdk bootstrap` and of the publishing of assets, where the command line is not used."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

from lab.aws.assembly import Assembly


def stand_in_for_bootstrap(
    assembly: Assembly, client_of: Callable[[str], Any], *, account: str, region: str
) -> tuple[str, ...]:
    """What `cdk bootstrap` and the publishing of assets leave behind, as far as the templates need it."""
    for name, version in assembly.bootstrap.items():
        client_of("ssm").put_parameter(Name=name, Value=str(version), Type="String")
    assets = assembly.code_assets(account=account, region=region)
    for bucket in sorted({bucket for bucket, _ in assets}):
        where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        client_of("s3").create_bucket(Bucket=bucket, **where)
    for bucket, key in assets:
        client_of("s3").put_object(Bucket=bucket, Key=key, Body=_placeholder_code())
    return tuple(f"{bucket}/{key}" for bucket, key in assets)


def _placeholder_code() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README", "A placeholder of the rehearsal, which invokes no function.\n")
    return buffer.getvalue()
